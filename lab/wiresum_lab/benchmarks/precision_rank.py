"""One rank of the benchmark of precision: a process with a group for each way of rounding, and one of Gloo.

`precision_bench.py` starts it in a worker's namespace and talks to it over its standard streams, one line a message:

    hello                                 all groups are there
    prepare KIND ELEMENTS DRAW -> ready   the tensor's values are chosen
    load                       -> ready   the tensor holds this rank's values again
    go GROUP AT_NS             -> ready   the tensor is summed
    report                     -> {JSON}  times and errors

GROUP is a value of WIRESUM_PRECISION, or "gloo". Times are CLOCK_MONOTONIC in nanoseconds.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import wiresum.torch
from wiresum_lab.ranks.rank_commands import serve

TIMEOUT = timedelta(seconds=300)
GLOO = "gloo"
PRECISIONS = ("block", "exact")
UNIT = 2.0**-24
MIXED_EVERY = 20


def normal(generator: torch.Generator, elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=generator)


def heavy_tailed(generator: torch.Generator, elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=generator) / torch.randn(elements, generator=generator) ** 3


def packed(generator: torch.Generator, elements: int) -> torch.Tensor:
    """Losses, counts, rates and tiny numbers side by side."""
    scales = torch.tensor([1.0, 1e9, 1e-6, 1e-30])
    return torch.randn(elements, generator=generator) * scales.repeat(elements // 4 + 1)[:elements]


def layers(generator: torch.Generator, elements: int) -> torch.Tensor:
    """A model's gradients: layers of normal numbers, of which one element in twenty is of a layer of another scale."""
    values = torch.randn(elements, generator=generator)
    values[: elements // MIXED_EVERY] *= 1e-6
    return values


def any_bits(generator: torch.Generator, elements: int) -> torch.Tensor:
    bits = torch.randint(-(2**31), 2**31, (elements,), generator=generator, dtype=torch.int64).to(torch.int32)
    values = bits.view(torch.float32)
    return torch.where(values.isfinite(), values, torch.zeros(())).clamp(-1e37, 1e37)


KINDS: dict[str, Callable[[torch.Generator, int], torch.Tensor]] = {
    kind.__name__: kind for kind in (normal, heavy_tailed, packed, layers, any_bits)
}


class Rank:
    """The groups, and the tensor of the current case."""

    def __init__(self, star_device: str) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("wiresum", timeout=TIMEOUT)
        self.groups: dict[str, dist.ProcessGroup] = {
            precision: dist.new_group(
                backend="wiresum", timeout=TIMEOUT, pg_options=wiresum.torch.Options(precision=precision)
            )
            for precision in PRECISIONS
        }
        # Wiresum's own Gloo stays on the management network; the one that is measured runs over the star.
        os.environ["GLOO_SOCKET_IFNAME"] = star_device
        self.groups[GLOO] = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self.own, self.tensor = torch.empty(0), torch.empty(0)
        self.exact, self.magnitudes = torch.empty(0), torch.empty(0)
        self.summed: dict[str, Any] = {}

    def prepare(self, kind: str, elements: int, draw: int) -> None:
        inputs = [
            KINDS[kind](torch.Generator().manual_seed(1000 * draw + rank), elements)
            for rank in range(dist.get_world_size())
        ]
        self.own, self.tensor = inputs[dist.get_rank()], torch.empty(elements)
        self.exact = torch.stack(inputs).double().sum(0)
        self.magnitudes = torch.stack(inputs).double().abs().sum(0)

    def load(self) -> None:
        self.tensor.copy_(self.own)

    def go(self, name: str, at_ns: int) -> None:
        time.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
        start_ns = time.monotonic_ns()
        dist.all_reduce(self.tensor, group=self.groups[name])
        self.summed = {"start_ns": start_ns, "end_ns": time.monotonic_ns()}

    def report(self) -> dict[str, Any]:
        """The error of an element is in units of 2^-24 of the sum of the magnitudes that went into it: one addition's
        is 1 at most. The sum in float64 stands for the exact one."""
        errors = (self.tensor.double() - self.exact).abs() / (UNIT * self.magnitudes + 2.0**-149)
        return self.summed | {
            "wrong_elements": 0,
            "error_max": float(errors.max()),
            "error_median": float(errors.median()),
            "lost": float((errors > 1 / UNIT * 0.5).double().mean()),
        }


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        sys.exit("usage: precision_rank.py STAR_DEVICE (precision_bench.py starts it)")
    rank = Rank(arguments[0])
    serve(
        {
            "prepare": lambda kind, elements, draw: rank.prepare(kind, int(elements), int(draw)),
            "load": rank.load,
            "go": lambda name, at_ns: rank.go(name, int(at_ns)),
            "report": rank.report,
        }
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
