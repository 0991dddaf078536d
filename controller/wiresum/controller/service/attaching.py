"""Switches that come to a service by themselves, to stand below its own: `wiresum switch --parent`.

Such a switch serves P4Runtime, as one of a controller's does. It says here where, and which machines hang on it, and is
driven over P4Runtime from then on. It stands below the service's own switch, or below another of those that came, so
there may be any number of levels. It says so again every few seconds, so it is found also by a service that was
started after it; one that says the same is already known. A switch that goes away is in trouble, like any other.

Workers of all machines join at this one service. (A switch could pass their calls on, but then it would stand between
the certificate of a worker and the service that looks at it.)
"""

from __future__ import annotations

import ipaddress
import logging
from typing import Any

import grpc

from wiresum import join
from wiresum.controller.driver import Endpoint, SwitchDriver, check_groups
from wiresum.controller.jobs.cluster import Switch
from wiresum.controller.jobs.jobs import Jobs
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.security.caller import caller
from wiresum.controller.security.security import Security
from wiresum.controller.service.answering import refuse
from wiresum.controller.service.effects import Effects
from wiresum.join import attach_pb2_grpc
from wiresum.join.constants import BELOW_ROOT_WORKERS_MAX, LANES_MAX, SWITCH_SLOTS_MAX, SWITCH_WORKERS_MAX
from wiresum.join.credentials import CredentialsError, is_loopback

log = logging.getLogger(__name__)

ELECTION_ID = 2
"""Above a standby's. There is one service for each of these switches, and its jobs end with it."""
NETWORKS_MAX = 256
Network = ipaddress.IPv4Network


class SwitchService(attach_pb2_grpc.SwitchServiceServicer):
    """Used from one event loop."""

    def __init__(self, root: SwitchDriver, jobs: Jobs, effects: Effects, security: Security, keys: bytes) -> None:
        """`keys`: the identity of the sequence that the jobs' keys are from."""
        self._root, self._jobs, self._effects = root, jobs, effects
        self._security, self._keys = security, keys
        self._attached: dict[str, join.AttachRequest] = {}
        self.networks: dict[str, list[Network]] = {}
        """By name of the switches below: whose machines hang on each."""
        self.drivers: list[SwitchDriver] = []
        """To be closed by who ends the service."""

    async def Attach(self, request: join.AttachRequest, context: Any) -> join.AttachReply:  # noqa: N802
        below = request.below
        if below and below not in self._jobs.cluster.switches:
            text = f"there is no switch {below!r} here to stand below, or not yet"
            await context.abort(grpc.StatusCode.UNAVAILABLE, text)  # no refusal: it is asked again
        try:
            self._attach(request)
        except Refusal as refusal:
            await refuse(context, refusal)
        return join.AttachReply()

    def claims(self, address: str) -> bool:
        """Does a machine with this address hang on a switch below?"""
        return any(_hangs_on(networks, address) for networks in self.networks.values())

    def _attach(self, request: join.AttachRequest) -> None:
        known = self._attached.get(request.name)
        if known == request:
            return
        if known is not None or request.name == self._root.name:
            raise Refusal(
                "ALREADY_EXISTS",
                f"a switch {request.name!r} is here already, with other ports, sizes or hosts: choose another --name, "
                f"or start the parent anew",
            )
        networks = _check(request)
        self._check_beside(request, networks)
        driver = self._driver(request)
        self.drivers.append(driver)
        self._attached[request.name], self.networks[request.name] = join.AttachRequest(), networks
        self._attached[request.name].CopyFrom(request)
        self._jobs.cluster.add(
            Switch(
                driver.name,
                driver.kind,
                driver.sizes,
                driver.endpoint,
                lambda address: _hangs_on(networks, address),
                parent=driver.parent,
            )
        )
        self._effects.add(driver)
        hosts = ", ".join(request.hosts) or "none"
        log.warning("%s stands below %s now, with the hosts %s", request.name, driver.parent, hosts)

    def _check_beside(self, request: join.AttachRequest, networks: list[Network]) -> None:
        """Can it stand beside what is there?"""
        host = request.p4runtime.rpartition(":")[0]
        caller().check_may_attach(host)
        if not (self._security.tls or self._security.insecure or is_loopback(request.p4runtime)):
            raise Refusal(
                "FAILED_PRECONDITION",
                f"the P4Runtime server of {request.name}, {request.p4runtime}, is not on this host, and this service "
                f"has no TLS directory: start both with --tls, or with --insecure",
            )
        if ipaddress.IPv4Address(self._root.endpoint.address).is_unspecified:
            raise Refusal(
                "FAILED_PRECONDITION",
                "switches below must know where the parent is: start it with --bind and the address of one interface",
            )
        if request.lanes != self._root.sizes.lanes_max:
            raise Refusal(
                "FAILED_PRECONDITION",
                f"packets of {request.lanes} words do not go through the parent, which sums "
                f"{self._root.sizes.lanes_max}: start both with the same --lanes or --mtu",
            )
        beside = [other for other in self._attached.values() if other.below == request.below]
        most = BELOW_ROOT_WORKERS_MAX if request.below else SWITCH_WORKERS_MAX
        if len(beside) >= most:
            raise Refusal("RESOURCE_EXHAUSTED", f"{most} switches stand below the parent, and no more can")
        for name, others in self.networks.items():
            shared = [str(one) for one in networks for other in others if one.overlaps(other)]
            if shared:
                raise Refusal(
                    "ALREADY_EXISTS", f"hosts {', '.join(shared)} hang on {name} already: a host is at one switch"
                )

    def _driver(self, request: join.AttachRequest) -> SwitchDriver:
        try:
            from wiresum.controller.config import Host
            from wiresum.controller.p4runtime import P4RuntimeSwitch, Target, device_config
        except ImportError as error:
            raise Refusal(
                "FAILED_PRECONDITION",
                f"the parent needs {error.name} for this: pip install 'wiresum[controller]' there",
            ) from error
        above = self._jobs.cluster.switches[request.below or self._root.name]
        target = Target(
            name=request.name,
            kind="software",
            p4runtime=request.p4runtime,
            device=0,
            pipeline=device_config.software(lanes=request.lanes, slots=request.slots),
            address=request.endpoint.address,
            port=request.endpoint.port,
            parent=Host(above.name, above.endpoint.address),
            multicast=request.multicast,
            tls=self._security.tls,
        )
        try:
            return P4RuntimeSwitch(target.with_keys(self._keys), election_id=ELECTION_ID)
        except CredentialsError as error:
            raise Refusal("FAILED_PRECONDITION", str(error)) from error


def _check(request: join.AttachRequest) -> list[Network]:
    """Whose machines hang on it. Raises a `Refusal` that names the field, if the request makes no sense."""
    if request.protocol_version != join.PROTOCOL_VERSION:
        raise Refusal(
            "FAILED_PRECONDITION",
            f"the switch speaks version {request.protocol_version} of the join protocol, and its parent version "
            f"{join.PROTOCOL_VERSION}: install the same release of wiresum at both",
        )
    if problem := join.name_problem(request.name):
        raise Refusal("INVALID_ARGUMENT", f"name {problem}")
    if not 1 <= request.lanes <= LANES_MAX or not 1 <= request.slots <= SWITCH_SLOTS_MAX:
        raise Refusal("INVALID_ARGUMENT", f"lanes and slots are {request.lanes} and {request.slots}")
    host, _, port = request.p4runtime.rpartition(":")
    try:
        _check_endpoint(Endpoint(host, int(port)))
        _check_endpoint(Endpoint(request.endpoint.address, request.endpoint.port))
        networks = [Network(text, strict=False) for text in request.hosts[:NETWORKS_MAX]]
        if request.multicast:
            check_groups(request.multicast)
    except ValueError as error:
        raise Refusal("INVALID_ARGUMENT", f"p4runtime, endpoint, hosts or multicast make no sense: {error}") from None
    if len(request.hosts) > NETWORKS_MAX:
        raise Refusal("INVALID_ARGUMENT", f"hosts must be at most {NETWORKS_MAX} addresses or networks")
    return networks


def _check_endpoint(endpoint: Endpoint) -> None:
    """Raises `ValueError`."""
    if ipaddress.IPv4Address(endpoint.address).is_unspecified or not 1 <= endpoint.port <= 65535:
        raise ValueError(f"{endpoint.address}:{endpoint.port} is none that anybody could send to")


def _hangs_on(networks: list[Network], address: str) -> bool:
    return any(ipaddress.IPv4Address(address) in network for network in networks)
