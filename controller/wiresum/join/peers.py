"""How a worker is named in texts for people."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from wiresum.join.join_pb2 import Peer

HOST_NAME_CHARACTERS_MAX = 64
"""The most characters of a host's name in a text."""


def ranks_text(ranks: Sequence[int], global_ranks: Sequence[int] = ()) -> str:
    """Names workers by their ranks in their job: "rank 1". In a job of a subgroup, a worker has also the rank by which
    people know it. Those of the same workers, in the same order, are added if they differ: "ranks 0, 1, global ranks
    1, 3"."""
    named = _numbered("rank", ranks)
    return named if list(global_ranks) in ([], list(ranks)) else f"{named}, {_numbered('global rank', global_ranks)}"


def _numbered(what: str, numbers: Sequence[int]) -> str:
    return f"{what}{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers))}"


def describe_peer(peer: Peer) -> str:
    """Names a worker: its ranks, then what the service has verified, and then, quoted, what the worker says about
    itself."""
    verified = [peer.address] if peer.address else []
    if peer.called_from not in ("", peer.address):
        verified.append(f"called from {peer.called_from}")
    if peer.certificate:
        verified.append(f"certificate {peer.certificate!r}")
    said = f"process {peer.process_id}"
    if peer.host_name:
        said += f" on {_cut(peer.host_name)!r}"
    named = ranks_text([peer.rank], [peer.global_rank] if peer.HasField("global_rank") else [])
    return f"{named} ({', '.join([*verified, said])})"


def why_translated(peer: Peer) -> str:
    """A sentence that says why the switch may not know a worker's packets by their address: the worker's Join came from
    another address than the one that it gives for its data. Empty: both are equal, or the Join came from the service's
    own host."""
    if peer.called_from in ("", peer.address) or not _is_remote(peer.called_from):
        return ""
    return (
        f"{describe_peer(peer)} calls the service from {peer.called_from}, and says that its data comes from "
        f"{peer.address}. If something on the way translates addresses (NAT), the switch takes none of its packets, "
        f"and what it sends to {peer.address} is lost"
    )


TRANSLATION_ADVICE = (
    "give workers and switches a way without NAT, and set WIRESUM_ADDRESS to the worker's address on it"
)


def _is_remote(address: str) -> bool:
    """True for an IPv4 address of another host. Addresses of data are IPv4: an address of another kind proves nothing
    about them."""
    try:
        return not ipaddress.IPv4Address(address).is_loopback
    except ValueError:
        return False


def _cut(host_name: str) -> str:
    long = len(host_name) > HOST_NAME_CHARACTERS_MAX
    return f"{host_name[:HOST_NAME_CHARACTERS_MAX]}..." if long else host_name
