"""Properties of data packets that leave this host: the local address, the size, the threads."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence

from wiresum.agent import _native
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import SwitchUnreachableError
from wiresum.agent.interfaces import has_carrier, mtu_of, name_of
from wiresum.join import hosts

THREADS_DEFAULT_MAX = 4
DPDK_MTU_BYTES = 1500
"""The default MTU, which WIRESUM_LANES changes; DPDK sets the port's MTU by it."""
SPIN_US_DEFAULT = 50
LOCAL_WORLD_SIZE_VARIABLES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Variables of torchrun, Open MPI and MPICH."""


def way_out(config: AgentConfig) -> tuple[str, int]:
    """Returns the local address that data packets to one aggregator leave from, and their MTU in bytes. Only the grant
    will tell the switch's address. So without WIRESUM_ADDRESS the switch is taken to be where the join service or its
    standby is."""
    if config.transport_kind == "dpdk":
        return config.address, DPDK_MTU_BYTES  # an address that the kernel does not have
    if config.address:
        mtu_bytes = mtu_of(config.address)
        if mtu_bytes is not None:
            return config.address, mtu_bytes
    control_address = _resolve(config.control_endpoints)
    address = config.address or _native.source_address(control_address)
    return address, _native.path_mtu(address, control_address)


def ports_address(config: AgentConfig, address: str) -> str:
    """Returns the address for reserving UDP ports: the local one, unless the kernel does not have it."""
    return "0.0.0.0" if config.transport_kind == "dpdk" else address


def path_mtu(address: str, switch_address: str) -> int | None:
    """Returns the MTU of the way from `address`, in bytes, as the kernel knows it now; None if unknown."""
    try:
        return _native.path_mtu(address, switch_address)
    except OSError:
        return None


def why_cut_off(transport: str, address: str, switch_address: str) -> str:
    """Returns what is wrong with this host's own way from `address` to the switch, in words; empty if the kernel knows
    of nothing, or if the way is not the kernel's."""
    if transport == "dpdk":
        return ""
    device = name_of(address)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
            probe.connect((switch_address, 9))  # looks for a route, and sends nothing
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return f"the address {address} is not this host's any more"
        return f"there is no way from {address} to {switch_address} ({error.strerror})"
    if device is not None and not has_carrier(device):
        return f"the interface {device} of {address} has no link"
    return ""


def default_threads(aggregators: int) -> int:
    """Returns the threads for each aggregator, a power of two: together they leave at least half of the cores to the
    computation, unless there are more aggregators than that."""
    share = min((os.cpu_count() or 1) // (2 * _local_world_size()), THREADS_DEFAULT_MAX) // aggregators
    threads = 1
    while threads * 2 <= share:
        threads *= 2
    return threads


def spin_us_of(threads: int) -> int:
    """Returns how long engine threads poll before they block: polling pays only if every one of them has a core besides
    the computation's."""
    needed = _local_world_size() * (threads + 1)
    return SPIN_US_DEFAULT if (os.cpu_count() or 1) > needed else 0


def _resolve(endpoints: Sequence[str]) -> str:
    """The IPv4 address of the first endpoint that has one."""
    for endpoint in endpoints:
        host = endpoint.rpartition(":")[0]
        try:
            address = hosts.addresses_of(host, socket.AF_INET)[0]
        except OSError as error:
            problem = f"cannot resolve the switch's address '{endpoint}' (WIRESUM_SWITCH): {error.strerror}"
        else:
            hosts.warn_if_only_here("WIRESUM_SWITCH, without WIRESUM_ADDRESS", host)
            return address
    raise SwitchUnreachableError(problem)


def _local_world_size() -> int:
    """Returns the number of workers on this host, from the launcher's variables."""
    texts = [os.environ.get(variable, "") for variable in LOCAL_WORLD_SIZE_VARIABLES]
    return max([int(text) for text in texts if text.isdecimal()], default=1) or 1
