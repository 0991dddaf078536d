"""What the environment says about how this worker should join: the `WIRESUM_*` variables."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

CONTROL_PORT = 43487
"""The join service's usual TCP port."""

THREADS_MAX = 16
LANES_MAX = 16370
"""Words of the largest UDP datagram over IPv4, after the header."""
SLOTS_MAX = 32768
"""A packet names its cell with 16 bits, and a slot has two cells."""
SPIN_US_MAX = 1_000_000
JOIN_TIMEOUT_S_MAX = 86_400.0
JOB_NAME_BYTES_MAX = 128
CONTROL_ENDPOINTS_MAX = 8
"""For each aggregator."""
PRECISIONS = ("auto", "exact", "block")
TRANSPORTS = ("udp", "xdp", "dpdk")
DEVICE_BYTES_MAX = 4096
AGGREGATORS_MAX = 8
"""As in the native core (engine/session.hpp)."""
TENANT_BYTES_MAX = 64
JOB_TOKEN_BYTES_MAX = 256
PRIORITY_MAX = 1_000_000


@dataclass(frozen=True)
class AgentConfig:
    """Every value is checked, wherever it comes from: a `ValueError` names the field and its variable."""

    switch: str = f"127.0.0.1:{CONTROL_PORT}"
    """WIRESUM_SWITCH: the control endpoint, host:port; a host alone gets the usual port. Several, with commas between
    them, if a standby may take over from the first. With + between them: several aggregators, over which the job is
    spread. The same ones at all workers; their order does not matter."""
    job: str = ""
    """WIRESUM_JOB: "" lets the backend choose a name."""
    address: str = ""
    """WIRESUM_ADDRESS: the local IPv4 address for data; "" takes the one that routes to the switch."""
    threads: int = 0
    """WIRESUM_THREADS: for each aggregator; 0 goes by the number of cores."""
    lanes: int = 0
    """WIRESUM_LANES: words in a packet; 0 goes by the MTU of the interface."""
    slots: int = 0
    """WIRESUM_SLOTS: 0 lets the service decide."""
    lane_bits: int = 32
    """WIRESUM_LANE_BITS: 32, 16 or 8 bits for each float on the wire."""
    precision: str = "auto"
    """WIRESUM_PRECISION: how sums of floats are rounded. exact: once, at the end; block: to 32 bits (WIRESUM_LANE_BITS)
    below the largest element of a packet, before they are added; auto: short tensors exact, and long ones, which
    gradients are, in blocks. The same at all workers."""
    spin_us: int = -1
    """WIRESUM_SPIN_US: how long to poll before blocking; -1 goes by the number of cores."""
    join_timeout_s: float = 300.0
    """WIRESUM_JOIN_TIMEOUT: how long to wait for the switch and for the other workers."""
    transport: str = "udp"
    """WIRESUM_TRANSPORT: how packets reach the network: udp, the kernel's sockets; xdp, AF_XDP; dpdk. Each worker
    chooses for itself."""
    device: str = ""
    """WIRESUM_DEVICE: for xdp the interface, "" for the one with the local address; for dpdk the EAL's arguments."""
    offload: bool = True
    """WIRESUM_OFFLOAD: UDP GSO and GRO, where the kernel has them."""
    sparse: bool = True
    """WIRESUM_SPARSE: leave out blocks that are zero at all workers, where that pays. The same at all workers."""
    key: int = field(default=0, repr=False)
    """WIRESUM_KEY: what all workers of the job must say alike; 0: nothing. Its packets have a key of their own."""
    tls: str = ""
    """WIRESUM_TLS: a directory with ca.crt, tls.crt and tls.key, for mutual TLS with the service."""
    insecure: bool = False
    """WIRESUM_INSECURE: join without TLS over a network, where everybody can read and end every job."""
    tenant: str = ""
    """WIRESUM_TENANT: on whose account; a certificate that names a tenant decides instead."""
    priority: int = 0
    """WIRESUM_PRIORITY: the larger gets slots first when they are short. The same at all workers."""
    job_token: str = field(default="", repr=False)
    """WIRESUM_JOB_TOKEN: what an operator got who created the job, if one did."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, **overrides: Any) -> AgentConfig:
        """Reads the variables; an override that is not None wins, an empty variable counts as unset."""
        unknown = overrides.keys() - _VARIABLES.keys()
        if unknown:
            raise TypeError(f"no such setting: {', '.join(sorted(unknown))}; there are {', '.join(_VARIABLES)}")
        values: dict[str, Any] = {}
        for name, (variable, parse) in _VARIABLES.items():
            text = environ.get(variable, "").strip()
            if overrides.get(name) is not None:
                values[name] = overrides[name]
            elif text:
                try:
                    values[name] = parse(text)
                except ValueError as error:
                    raise ValueError(f"{variable}={_shown(name, text)}: {error}") from None
        return cls(**values)

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            problem = check(getattr(self, name))
            if problem:
                shown = _shown(name, getattr(self, name))
                raise ValueError(f"{_VARIABLES[name][0]} ({name}) is {shown}: {problem}")
        if problem := self._device_problem():
            raise ValueError(f"WIRESUM_TRANSPORT (transport) is '{self.transport}': {problem}")
        object.__setattr__(self, "switch", "+".join(map(",".join, _endpoints_of(self.switch))))

    def _device_problem(self) -> str:
        """What is asked of a transport over a device that it cannot do, or "" if nothing."""
        if self.transport == "udp":
            return f"WIRESUM_DEVICE ({self.device!r}) is for xdp and dpdk" if self.device else ""
        if self.threads > 1:
            return "it drives the device with one thread, so WIRESUM_THREADS must be 1, or unset"
        if "+" in self.switch:
            return "it serves one aggregator, and WIRESUM_SWITCH names several"
        if self.transport == "dpdk" and not self.device:
            return "WIRESUM_DEVICE must have the EAL's arguments, like '-a 0000:01:00.0'"
        if self.transport == "dpdk" and not self.address:
            return "WIRESUM_ADDRESS must be the IPv4 address that this worker is to have; the kernel knows of none"
        return ""

    @property
    def aggregators(self) -> tuple[AgentConfig, ...]:
        """The same for each aggregator alone, in an order that does not depend on how they were written down."""
        return tuple(replace(self, switch=part) for part in sorted(self.switch.split("+")))

    @property
    def control_endpoints(self) -> tuple[str, ...]:
        """Of the first aggregator, each as host:port, in the order in which they are tried."""
        return tuple(_endpoints_of(self.switch)[0])

    @property
    def switch_host(self) -> str:
        """Of the first endpoint."""
        return self.control_endpoints[0].rpartition(":")[0]

    @property
    def switch_port(self) -> int:
        """Of the first endpoint."""
        return int(self.control_endpoints[0].rpartition(":")[2])


def _shown(name: str, value: object) -> str:
    return "(not shown)" if name in _SECRET else repr(value)


def _integer(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError("a whole number is needed, like 4 or 0x10") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number of seconds is needed, like 60 or 2.5") from None


def _boolean(text: str) -> bool:
    value = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in value:
        raise ValueError("1 or 0 is needed (or true, false, yes, no, on, off)")
    return value[text.lower()]


_VARIABLES: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "switch": ("WIRESUM_SWITCH", str),
    "job": ("WIRESUM_JOB", str),
    "address": ("WIRESUM_ADDRESS", str),
    "threads": ("WIRESUM_THREADS", _integer),
    "lanes": ("WIRESUM_LANES", _integer),
    "slots": ("WIRESUM_SLOTS", _integer),
    "lane_bits": ("WIRESUM_LANE_BITS", _integer),
    "precision": ("WIRESUM_PRECISION", str.lower),
    "spin_us": ("WIRESUM_SPIN_US", _integer),
    "join_timeout_s": ("WIRESUM_JOIN_TIMEOUT", _number),
    "transport": ("WIRESUM_TRANSPORT", str.lower),
    "device": ("WIRESUM_DEVICE", str),
    "offload": ("WIRESUM_OFFLOAD", _boolean),
    "sparse": ("WIRESUM_SPARSE", _boolean),
    "key": ("WIRESUM_KEY", _integer),
    "tls": ("WIRESUM_TLS", str),
    "insecure": ("WIRESUM_INSECURE", _boolean),
    "tenant": ("WIRESUM_TENANT", str),
    "priority": ("WIRESUM_PRIORITY", _integer),
    "job_token": ("WIRESUM_JOB_TOKEN", str),
}
_SECRET = frozenset({"key", "job_token"})
"""Their values are not repeated in errors, which end up in logs."""


def _within(least: int, most: int) -> Callable[[int], str]:
    return lambda value: "" if least <= value <= most else f"it must be {least} to {most}"


def _endpoints_of(switch: str) -> list[list[str]]:
    """Of each aggregator those of the active service and its standbys, with their ports."""
    parts = [[endpoint.strip() for endpoint in part.split(",")] for part in switch.split("+")]
    return [[endpoint if ":" in endpoint else f"{endpoint}:{CONTROL_PORT}" for endpoint in part] for part in parts]


def _switch_problem(switch: str) -> str:
    aggregators = switch.split("+")
    if len(aggregators) > AGGREGATORS_MAX:
        return f"there can be {AGGREGATORS_MAX} aggregators at most"
    for aggregator in aggregators:
        endpoints = [endpoint.strip() for endpoint in aggregator.split(",")]
        if len(endpoints) > CONTROL_ENDPOINTS_MAX:
            return f"there can be {CONTROL_ENDPOINTS_MAX} endpoints at most for an aggregator"
        if problem := next((problem for problem in map(_endpoint_problem, endpoints) if problem), ""):
            return problem
    seen: set[str] = set()
    for part in _endpoints_of(switch):
        if twice := seen.intersection(part):
            return f"it names {min(twice)} for two aggregators; each needs a join service of its own"
        seen.update(part)
    return ""


def _endpoint_problem(endpoint: str) -> str:
    host, colon, port = endpoint.rpartition(":")
    if not colon:
        host, port = endpoint, str(CONTROL_PORT)
    if not host or ":" in host or any(c.isspace() for c in endpoint):
        return "it must be host:port, with a name or an IPv4 address, like 10.0.0.1:43487"
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        return "its port must be 1 to 65535"
    return ""


def _printable(bytes_max: int) -> Callable[[str], str]:
    def problem(text: str) -> str:
        if not text.isprintable() or len(text.encode()) > bytes_max:
            return f"it must be printable, and at most {bytes_max} bytes long"
        return ""

    return problem


def _address_problem(address: str) -> str:
    if not address:
        return ""
    try:
        parsed = ipaddress.IPv4Address(address)
    except ValueError:
        return "it must be an IPv4 address of this host, like 10.0.0.1"
    if parsed.is_unspecified or parsed.is_multicast or parsed.is_reserved:
        return "it must be the address of one interface of this host"
    return ""


_CHECKS: Mapping[str, Callable[[Any], str]] = {
    "switch": _switch_problem,
    "job": _printable(JOB_NAME_BYTES_MAX),
    "address": _address_problem,
    "threads": _within(0, THREADS_MAX),
    "lanes": _within(0, LANES_MAX),
    "slots": _within(0, SLOTS_MAX),
    "lane_bits": lambda bits: "" if bits in (32, 16, 8) else "it must be 32, 16 or 8",
    "precision": lambda name: "" if name in PRECISIONS else f"it must be one of {', '.join(PRECISIONS)}",
    "spin_us": _within(-1, SPIN_US_MAX),
    "join_timeout_s": lambda s: "" if 0 < s <= JOIN_TIMEOUT_S_MAX else f"it must be over 0, to {JOIN_TIMEOUT_S_MAX}",
    "transport": lambda name: "" if name in TRANSPORTS else f"it must be one of {', '.join(TRANSPORTS)}",
    "device": _printable(DEVICE_BYTES_MAX),
    "key": _within(0, 2**32 - 1),
    "tenant": _printable(TENANT_BYTES_MAX),
    "priority": _within(-PRIORITY_MAX, PRIORITY_MAX),
    "job_token": _printable(JOB_TOKEN_BYTES_MAX),
}
