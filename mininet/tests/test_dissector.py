"""The Wireshark dissector, in tshark, with every packet of the test vectors."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from wiresum.conformance.frames import Host, UdpFrame
from wiresum.conformance.reader import load_all
from wiresum.join.constants import HEADER_BYTES, SWITCH_PORT, Header, Kind

DISSECTOR = Path(__file__).resolve().parents[1] / "wireshark" / "wiresum.lua"
WORKER_PORT = 20_000
KINDS = tuple(kind.name for kind in Kind)
FROM_SWITCH = (2, 5)

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def tshark() -> str:
    """Skips where tshark is missing, with advice on how to install it."""
    if (found := shutil.which("tshark")) is None:
        pytest.skip("the Wireshark dissector is not tested: tshark is not on PATH (apt-get install tshark)")
    return found


def capture(datagrams: Iterable[tuple[bytes, int]], path: Path) -> None:
    """A pcap of datagrams, each with the number of its thread."""
    ends = Host(bytes(6), IPv4Address("10.0.0.1")), Host(bytes(6), IPv4Address("10.0.0.101"))
    with path.open("wb") as file:
        file.write(struct.pack("=IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number, (datagram, thread) in enumerate(datagrams):
            ports = WORKER_PORT + thread, SWITCH_PORT + thread
            is_answer = bool(datagram) and datagram[0] & 15 in FROM_SWITCH
            source, target = ends[::-1] if is_answer else ends
            frame = UdpFrame(source, target, *(ports[::-1] if is_answer else ports), datagram).pack()
            file.write(struct.pack("=IIII", number, 0, len(frame), len(frame)) + frame)


def dissect(tshark: str, path: Path, *options: str) -> list[dict[str, Any]]:
    """For each packet, the fields of our protocol that tshark shows, and its line in the list."""
    command = [tshark, "-X", f"lua_script:{DISSECTOR}", "-r", str(path), *options]
    done = subprocess.run([*command, "-T", "ek"], capture_output=True, text=True, check=True)
    assert "Lua" not in done.stderr, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    infos = subprocess.run(
        [*command, "-T", "fields", "-e", "_ws.col.Info"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    packets = [line["layers"] for line in lines if "layers" in line]
    return [{**packet.get("wiresum", {}), "info": info} for packet, info in zip(packets, infos, strict=True)]


def every_packet_of_the_vectors() -> list[tuple[bytes, int]]:
    """Without empty datagrams, which Wireshark does not pass to dissectors."""
    found: list[tuple[bytes, int]] = []
    for scenario in load_all():
        for step in scenario.steps:
            if step.datagram:
                found.append((step.datagram, step.thread))
            if step.expectation.receivers:
                found.append((step.expectation.datagram, step.thread))
    return found


def values(packet: dict[str, Any], name: str) -> list[int]:
    value = packet.get(f"wiresum_wiresum_{name}", [])
    return [int(one, 0) for one in (value if isinstance(value, list) else [value])]


@pytest.mark.slow
def test_every_field_of_every_packet_is_shown(tshark: str, tmp_path: Path) -> None:
    sent = every_packet_of_the_vectors()
    assert len(sent) > 500
    capture(sent, tmp_path / "vectors.pcap")
    shown = dissect(tshark, tmp_path / "vectors.pcap")
    assert len(shown) == len(sent)
    for (datagram, thread), packet in zip(sent, shown, strict=True):
        if len(datagram) < HEADER_BYTES:
            assert packet["info"] == f"Truncated: {len(datagram)} bytes"
            continue
        header = Header.unpack(datagram)
        words = struct.unpack(f"!{(len(datagram) - HEADER_BYTES) // 4}i", whole_words(datagram))
        expected = {
            **vars(header),
            "exponent": (header.exponent ^ 0x80) - 0x80,
            "slot": header.cell // 2,
            "parity": header.round % 2,
            "tensor_signature": header.tensor >> 16,
            "tensor_sequence": header.tensor & 0xFFFF,
            "thread": thread,
            "words": len(words),
        }
        assert {name: values(packet, name) for name in expected} == {name: [one] for name, one in expected.items()}
        assert values(packet, "word") == list(words)
        kind = KINDS[header.kind] if header.kind < len(KINDS) else f"kind {header.kind}"
        parity = ("even", "odd")[header.round % 2]
        start = f"{kind} round {header.round} ({parity}) slot {header.cell // 2}, job {header.job}"
        assert packet["info"].startswith(start)


def whole_words(datagram: bytes) -> bytes:
    payload = datagram[HEADER_BYTES:]
    return payload[: len(payload) // 4 * 4]


def packet(kind: int, words: Sequence[int] = (), **fields: int) -> bytes:
    header = replace(Header(kind=kind, job=1, key=7, cell=1, round=1, tensor=2), **fields)
    return header.pack() + struct.pack(f"!{len(words)}i", *words)


UNUSUAL = {
    "truncated": b"\x10",
    "bad_version": packet(0, [1], version=2),
    "bad_kind": packet(9),
    "ragged": packet(0, [1]) + b"\0",
    "surplus": packet(3, [1]),
    "no_words": packet(0),
    "bad_parity": packet(0, [1], cell=2),
    "diverged": packet(2, [1], flags=2),
    "again": packet(0, [1], flags=1),
    "missing": packet(5),
}


def test_only_unusual_fields_are_remarked_on(tshark: str, tmp_path: Path) -> None:
    capture([(datagram, 0) for datagram in (*UNUSUAL.values(), packet(0, [1]))], tmp_path / "unusual.pcap")
    shown = [json.dumps(one) for one in dissect(tshark, tmp_path / "unusual.pcap")]
    remarks = [{name for name in UNUSUAL if f'"wiresum_wiresum_{name}"' in one} for one in shown]
    assert remarks == [*({name} for name in UNUSUAL), set()]


def test_the_contributions_to_a_slot_are_counted(tshark: str, tmp_path: Path) -> None:
    contributions = [packet(0, [1], worker=worker) for worker in (2, 0, 1)]
    question, result, next_round = packet(4, worker=3), packet(2, [3]), packet(0, [1], round=2, cell=0)
    capture([(one, 0) for one in (*contributions, question, result, next_round)], tmp_path / "slot.pcap")
    seen = [one["wiresum_wiresum_seen"] for one in dissect(tshark, tmp_path / "slot.pcap")]
    assert seen == ["2", "0, 2", "0, 1, 2", "0, 1, 2", "0, 1, 2", "0"]


def test_the_base_port_can_be_changed(tshark: str, tmp_path: Path) -> None:
    capture([(packet(0, [1]), 0)], tmp_path / "one.pcap")
    assert "wiresum_wiresum_round" in dissect(tshark, tmp_path / "one.pcap")[0]
    chosen = dissect(tshark, tmp_path / "one.pcap", "-o", "wiresum.port:40000")[0]
    assert "wiresum_wiresum_round" not in chosen
