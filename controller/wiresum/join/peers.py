"""How a worker is named in texts for people."""

from __future__ import annotations

from wiresum.join.join_pb2 import Peer

HOST_NAME_CHARACTERS_MAX = 64
"""Of a host's name in a text."""


def describe_peer(peer: Peer) -> str:
    """What the service has verified comes first, and then, quoted, what the worker says of itself."""
    verified = [peer.address] if peer.address else []
    if peer.called_from not in ("", peer.address):
        verified.append(f"called from {peer.called_from}")
    if peer.certificate:
        verified.append(f"certificate {peer.certificate!r}")
    said = f"process {peer.process_id}"
    if peer.host_name:
        said += f" on {_cut(peer.host_name)!r}"
    return f"rank {peer.rank} ({', '.join([*verified, said])})"


def _cut(host_name: str) -> str:
    long = len(host_name) > HOST_NAME_CHARACTERS_MAX
    return f"{host_name[:HOST_NAME_CHARACTERS_MAX]}..." if long else host_name
