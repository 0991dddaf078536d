"""The rate, loss, duplication, reordering and delay of a star's links, as `tc` commands.

Theory of operation. A link is a veth pair, and each end shapes what leaves it, so a link is full duplex.

*Rate* is a token bucket (tbf). It counts the bytes of Ethernet frames without checksum, preamble and gap: that is the
"line rate" of every figure that is derived from a star. The bucket holds a millisecond of the rate, and at least 32 kB.
This size has two reasons. The kernel refills a bucket from a timer that fires late when cores are busy, and tokens that
do not fit are lost for ever. And a bucket releases waiting packets with one timer interrupt for each buffer: with one
packet in each, sixteen ends of 100 Mbit/s need 130,000 interrupts a second, which in a virtual machine cost more than a
core and would dominate any measurement. So trains of packets pass through a bucket as one buffer, as they pass to a
real interface, if they fit (`train_packets`), and gso_max_segs tells TCP so. A transfer gains one bucket over line
rate: 0.4% of 8 MB at 100 Mbit/s. The dense benchmark counts the bucket into the bound.

*Packets* are as large as the link's MTU. Ethernet's is 1500 bytes; clusters whose switches allow them use 9000 bytes
("jumbo frames"), since each packet costs hosts time.

*On the wire packets are single.* The veths of shaped links have segmentation offloads switched off, so the kernel cuts
trains between the bucket and the other end, and nothing joins packets again (GRO is off): loss, duplication and
reordering hit one packet.

*Loss, duplication, reordering, delay* are netem's where the kernel has it. netem is below the bucket, before trains are
cut. In this case the bucket cuts them, by its peak rate, whose only effect is that a buffer above the peak bucket
(`mtu`) is cut before it is queued. A kernel without netem still offers loss, duplication and reordering: filters at the
receiving end of the link toss a coin for each packet (a classic BPF program that reads the kernel's random generator)
and drop the packet, mirror it, or send it on a detour through a slow queue. There a lost packet has used up its share
of the rate, like a packet with a bit error.
"""

from __future__ import annotations

from dataclasses import dataclass

MTU_BYTES = 1500
# Every IPv4 host takes the smallest (RFC 791); switches in data centres forward frames up to the largest.
MTU_BYTES_MIN = 576
MTU_BYTES_MAX = 9216
ETHERNET_HEADER_BYTES = 14
BURST_S = 0.001
BURST_BYTES_MIN = 32_000
# The largest buffer of IPv4 packets that the kernel builds.
TRAIN_BYTES_MAX = 65_535
# A switch with shallow buffers gives a port so much, and a host's interface queues about as much (1000 packets).
QUEUE_BYTES = 1_000_000
PEAK_RATE = "100gbit"
# A bucket that passes single frames holds one frame and so much more.
SINGLE_FRAME_SLACK_BYTES = 86
NETEM_QUEUE_PACKETS = 10_000
REORDER_DELAY_US = 1000
# Without netem, a reordered packet takes a detour through a queue of this rate and depth.
DETOUR_RATE = "8mbit"
DETOUR_QUEUE_FRAMES = 16
DETOUR_DEVICE = "detour"
# Verdicts of a BPF program: TC_ACT_UNSPEC and TC_ACT_SHOT in linux/pkt_cls.h.
BPF_UNSPECIFIED, BPF_DROP = 0xFFFFFFFF, 2


class UnsupportedLinkError(ValueError):
    """The kernel has no means for an impairment that the link asks for."""


@dataclass(frozen=True)
class Link:
    """The properties of a star's links, the same in both directions. The default is an unshaped link."""

    rate_mbit: float | None = None
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay_us: int = 0
    mtu: int = MTU_BYTES
    """Bytes of the largest IP packet; all links of a star have the same MTU, which never changes."""

    def __post_init__(self) -> None:
        if self.rate_mbit is not None and self.rate_mbit <= 0:
            raise ValueError(f"a link's rate must be above 0 Mbit/s, not {self.rate_mbit}; None leaves it unshaped")
        for name in ("loss", "duplicate", "reorder"):
            fraction = getattr(self, name)
            if not 0.0 <= fraction < 1.0:
                raise ValueError(f"{name} is a fraction of packets, 0 <= fraction < 1, not {fraction}")
        if self.delay_us < 0:
            raise ValueError(f"delay_us must not be negative: {self.delay_us}")
        if not MTU_BYTES_MIN <= self.mtu <= MTU_BYTES_MAX:
            raise ValueError(f"mtu must be {MTU_BYTES_MIN} to {MTU_BYTES_MAX} bytes of IP packet, not {self.mtu}")

    @property
    def impaired(self) -> bool:
        return bool(self.loss or self.duplicate or self.reorder or self.delay_us)

    @property
    def keeps_offloads(self) -> bool:
        """Whether the link lets trains of packets pass as one buffer."""
        return self.rate_mbit is None and not self.impaired

    @property
    def frame_bytes(self) -> int:
        """Bytes of a full packet as the shaper counts them."""
        return self.mtu + ETHERNET_HEADER_BYTES

    def __str__(self) -> str:
        parts = ["unshaped" if self.rate_mbit is None else f"{self.rate_mbit:g} Mbit/s"]
        parts += [
            f"{name} {getattr(self, name):.2%}" for name in ("loss", "duplicate", "reorder") if getattr(self, name)
        ]
        if self.delay_us:
            parts.append(f"delay {self.delay_us} us")
        if self.mtu != MTU_BYTES:
            parts.append(f"MTU {self.mtu}")
        return ", ".join(parts)


def burst_bytes(rate_mbit: float) -> int:
    """Size of a token bucket: so many bytes can pass at once after a pause."""
    return max(BURST_BYTES_MIN, int(rate_mbit * 1e6 / 8 * BURST_S))


def train_packets(link: Link, *, netem: bool) -> int:
    """How many packets may go through a queue of this link as one buffer."""
    if link.impaired and netem:
        return 1
    packets = TRAIN_BYTES_MAX // link.mtu
    return packets if link.rate_mbit is None else min(packets, burst_bytes(link.rate_mbit) // link.frame_bytes)


def tc_commands(link: Link, device: str, *, netem: bool) -> list[str]:
    """The lines of a `tc -batch` that make `device`, which has no queue of its own yet, one end of `link`.

    Reordering without netem needs a device named DETOUR_DEVICE (an ifb) in the same namespace.
    """
    commands = _rate_commands(link, device, cut_trains=link.impaired and netem)
    if not link.impaired:
        return commands
    if netem:
        parent = "root" if link.rate_mbit is None else "parent 1:1"
        return [*commands, f"qdisc add dev {device} {parent} handle 2: netem {_netem_arguments(link)}"]
    if link.delay_us:
        raise UnsupportedLinkError(
            "a link with a delay needs the netem queueing discipline, which this kernel lacks (CONFIG_NET_SCH_NETEM)"
        )
    return [*commands, *_filter_commands(link, device)]


def detour_commands(link: Link) -> list[str]:
    """The `tc` line that makes the queue of the detour."""
    limit = DETOUR_QUEUE_FRAMES * link.frame_bytes
    bucket = f"tbf rate {DETOUR_RATE} burst {_single_frame_bucket_bytes(link)} limit {limit}"
    return [f"qdisc add dev {DETOUR_DEVICE} root {bucket}"]


def _rate_commands(link: Link, device: str, *, cut_trains: bool) -> list[str]:
    if link.rate_mbit is None:
        return []
    peak = f" peakrate {PEAK_RATE} mtu {_single_frame_bucket_bytes(link)}" if cut_trains else ""
    return [
        f"qdisc add dev {device} root handle 1: tbf rate {round(link.rate_mbit * 1e6)}bit"
        f" burst {burst_bytes(link.rate_mbit)}{peak} limit {QUEUE_BYTES}"
    ]


def _single_frame_bucket_bytes(link: Link) -> int:
    return link.frame_bytes + SINGLE_FRAME_SLACK_BYTES


def _netem_arguments(link: Link) -> str:
    words = [f"limit {NETEM_QUEUE_PACKETS}"]
    # netem reorders by letting packets overtake those that it delays, so reordering implies a delay.
    delay_us = link.delay_us or (REORDER_DELAY_US if link.reorder else 0)
    if delay_us:
        words.append(f"delay {delay_us}us")
    words += [f"{name} {getattr(link, name):.6%}" for name in ("loss", "duplicate", "reorder") if getattr(link, name)]
    return " ".join(words)


def _filter_commands(link: Link, device: str) -> list[str]:
    """Filters at the receiving end that toss coins; the first filter that matches decides about a packet."""
    ingress = f"filter add dev {device} ingress protocol all"
    commands = [f"qdisc add dev {device} clsact"]
    if link.loss:
        commands.append(f"{ingress} pref 1 bpf direct-action bytecode '{loss_program(link.loss)}'")
    if link.duplicate:
        coin = _coin_program(link.duplicate, heads=BPF_UNSPECIFIED, tails=0)
        commands.append(f"{ingress} pref 2 bpf bytecode '{coin}' action mirred ingress mirror dev {device}")
    if link.reorder:
        coin = _coin_program(link.reorder, heads=BPF_UNSPECIFIED, tails=0)
        commands.append(f"{ingress} pref 3 bpf bytecode '{coin}' action mirred egress redirect dev {DETOUR_DEVICE}")
    return commands


def loss_program(fraction: float) -> str:
    """A BPF program for a filter with `direct-action`, which drops a random `fraction` of packets."""
    return _coin_program(fraction, heads=BPF_DROP, tails=BPF_UNSPECIFIED)


def _coin_program(fraction: float, *, heads: int, tails: int) -> str:
    """A classic BPF program that returns `heads` for a random `fraction` of packets, else `tails`."""
    ancillary_random = 0xFFFFF000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM
    load, jump_if_at_least, leave = 0x20, 0x35, 0x06
    program = [
        (load, 0, 0, ancillary_random),
        (jump_if_at_least, 1, 0, round(fraction * 2**32)),
        (leave, 0, 0, heads),
        (leave, 0, 0, tails),
    ]
    return f"{len(program)}," + ",".join(" ".join(map(str, instruction)) for instruction in program)
