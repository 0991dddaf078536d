"""Tests and measures tensors on this machine's accelerator (a GPU), and leaves a report: make bench NAMES=gpu.

Two workers and a software switch run on this machine; with several devices, each worker has its own. First the tests of
such tensors run, then the tests of collectives, works, DDP and compression with all tensors on the device, and on CUDA
PyTorch's own tests of a backend's collectives. Then the program measures:

copies   a tensor from the device to pinned memory and back, alone
sum      an all-reduce of a tensor, on the device and in host memory. A call takes at least as long as its longest part,
         which is the copies or the network; `times the longest part` says how near the call comes to that bound. Then
         sums in other formats, in which the network has less to carry and the copies have as much, and of 1 kB
waiting  processor time of all threads of a worker while its call waits for its own stream, or for the other worker
DDP      a step with bucketed all-reduces, a step without, and the all-reduces alone: which part of them the backward
         pass hides

Without an accelerator the program says so and ends with status 3. `--double` uses the device for tests, which is host
memory: the run shows that this program works, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from wiresum_lab import REPOSITORY
from wiresum_lab.benchmarks.on_this_machine import answer_of
from wiresum_lab.doubles import device as double
from wiresum_lab.ranks.on_device import PREPARE_VARIABLE, keep_busy

WORKERS = 2
NO_ACCELERATOR = 3
TESTS_TIMEOUT_S = 110.0
RUN_TIMEOUT_S = 150.0
SMALL_REPETITIONS = 200
INPUTS_MAX = 1 << 14
"""Upper bound on the batch of DDP's model: a GPU needs many inputs before a step takes as long as its sums."""
FORMATS: dict[str, dict[str, Any]] = {
    "sum_in_blocks": {"precision": "block"},
    "sum_in_blocks_of_16_bits": {"precision": "block", "bits": 16},
    "sum_in_8_bits_of_a_fixed_scale": {"bits": 8, "fixed_scale": 16.0},
}
WAIT_S = 1.0
"""How long a call waits in the measurement `waiting`."""
TESTS = Path("plugins")
OWN_TESTS = (
    "torch/tests/test_accelerators.py",
    "torch/tests/test_accelerators_rows_and_gloo.py",
    "compress/tests/test_host_copy.py",
)
SUITES = ("torch/tests/test_collectives.py", "torch/tests/test_work.py", "torch/tests/test_ddp.py")
COMPRESSION = ("compress/tests/test_ddp_hook.py", "compress/tests/test_attach.py", "compress/tests/test_loss_scaler.py")
"""Tests of compression that run with all tensors on the accelerator."""
PYTORCHS_OWN = ("torch/tests/test_theirs.py",)
NOT_ON_DOUBLE = (
    "test_ddp.py",
    "test_copies_and_scatters_of_strided_tensors",
    "test_a_result_that_cannot_be_stored_ends_the_future",
    "test_the_number_of_workers_may_change_if_allowed",
    "test_an_inf_in_what_is_not_compressed_changes_no_memory",
)
"""Tests that the double cannot run. It lacks Gloo, views of the parts of complex tensors, pickled tensors and products
of sparse tensors, and copies into memory that elements share."""


def seconds_of(repetitions: int, run: Callable[[], object]) -> float:
    """The median duration of `run`, each time from an idle device to an idle device."""
    import torch

    measured = []
    for _ in range(repetitions + 1):
        torch.accelerator.synchronize()
        began = time.perf_counter()
        run()
        torch.accelerator.synchronize()
        measured.append(time.perf_counter() - began)
    return statistics.median(measured[1:])  # the first call creates lazy objects


def copies(elements: int, repetitions: int) -> dict[str, float]:
    import torch

    device = torch.accelerator.current_accelerator()
    tensor, host = torch.ones(elements, device=device), torch.ones(elements, pin_memory=True)
    return {
        "to_host_s": seconds_of(repetitions, lambda: host.copy_(tensor, non_blocking=True)),
        "to_device_s": seconds_of(repetitions, lambda: tensor.copy_(host, non_blocking=True)),
    }


def sums(elements: int, repetitions: int, options: Any = None) -> dict[str, float]:
    import torch
    import torch.distributed as dist

    group = dist.new_group(pg_options=options) if options is not None else None
    # Ones, since zeros would not be sent, and the mean of ones is one again.
    on_device = torch.ones(elements, device=torch.accelerator.current_accelerator())
    in_host_memory = torch.ones(elements)
    found = {
        name: seconds_of(repetitions, partial(dist.all_reduce, tensor, dist.ReduceOp.AVG, group))
        for name, tensor in (("in_host_memory_s", in_host_memory), ("on_device_s", on_device))
    }
    if group is not None:
        dist.destroy_process_group(group)
    return found


def waiting(rank: int) -> dict[str, float]:
    """Processor seconds of this process for each second that a call waits. Only rank 0's figures count: it always
    waits."""
    import torch
    import torch.distributed as dist

    tensor = torch.zeros(1000, device=torch.accelerator.current_accelerator())
    found = {}
    for name in ("its_stream", "the_other"):
        dist.barrier()
        torch.accelerator.synchronize()
        if rank == 1:
            time.sleep(WAIT_S)
        elif name == "its_stream":
            keep_busy(WAIT_S)
        began, processor = time.perf_counter(), time.process_time()
        dist.all_reduce(tensor)
        found[name] = (time.process_time() - processor) / (time.perf_counter() - began)
    return found


def overlap(repetitions: int, width: int) -> dict[str, float]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    device = torch.accelerator.current_accelerator()
    layers = [torch.nn.Linear(width, width) for _ in range(12)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device), bucket_cap_mb=16)
    inputs = torch.ones(64, width, device=device)
    gradients = [torch.ones(width * width, device=device) for _ in layers]

    def step() -> None:
        model(inputs).sum().backward()

    def alone() -> None:
        with model.no_sync():
            step()

    def only_sums() -> None:
        for work in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
            assert work is not None
            work.wait()

    def is_short() -> bool:
        """Whether a step takes less time than its sums, by rank 0's measurement."""
        said = torch.tensor([seconds_of(1, alone) < sums_alone_s])
        dist.broadcast(said, 0)
        return bool(said)

    sums_alone_s = seconds_of(repetitions, only_sums)
    while len(inputs) < INPUTS_MAX and is_short():  # a short step could not hide the sums
        inputs = inputs.repeat(2, 1)
    measured = {
        "inputs": len(inputs),
        "step_s": seconds_of(repetitions, step),
        "step_without_sums_s": seconds_of(repetitions, alone),
        "sums_alone_s": sums_alone_s,
    }
    hidden = measured["step_without_sums_s"] + measured["sums_alone_s"] - measured["step_s"]
    shorter = min(measured["step_without_sums_s"], measured["sums_alone_s"])
    return {**measured, "hidden_part": hidden / shorter}


def work(rank: int, switch: str, folder: str, options: argparse.Namespace, answer: Any) -> None:
    if options.double:
        double.load()
    import torch
    import torch.distributed as dist

    from wiresum.torch import Options

    torch.accelerator.set_device_index(rank % torch.accelerator.device_count())
    method = f"file://{folder}/store"
    dist.init_process_group(
        "wiresum", init_method=method, rank=rank, world_size=WORKERS, pg_options=Options(switch=switch)
    )
    elements = options.bytes // 4
    found = {
        "copies": copies(elements, options.repetitions),
        "sum": sums(elements, options.repetitions),
        **{
            name: sums(elements, options.repetitions, Options(switch=switch, **settings))
            for name, settings in FORMATS.items()
        },
        "1_kB": sums(250, SMALL_REPETITIONS),
        "waiting": waiting(rank),
        "ddp": overlap(options.repetitions, options.width),
    }
    if rank == 0:
        answer.send(found)
    dist.barrier()
    dist.destroy_process_group()


def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = answer_of(WORKERS, work, options, timeout_s=RUN_TIMEOUT_S, switch=[])
    return found


def run_tests(options: argparse.Namespace) -> dict[str, str]:
    """Runs the tests, with the output in the folder. Returns the last line of pytest in each run."""
    import torch

    on_device = {PREPARE_VARIABLE: "double" if options.double else "accelerator"}
    quick = ["-m", "not slow and not nightly"]
    if options.double:
        quick += ["-k", " and ".join(f"not {name}" for name in NOT_ON_DOUBLE)]
    runs: dict[str, tuple[Sequence[str], Sequence[str], Mapping[str, str]]] = {
        "accelerators": (OWN_TESTS, quick, {}),
        "suites": (SUITES, quick, on_device),
        "compression": (COMPRESSION, quick, on_device),
    }
    if torch.cuda.is_available():
        runs["PyTorch's own"] = (PYTORCHS_OWN, ["-k", "on_cuda"], {})
    said = {}
    for name, (files, selection, variables) in runs.items():
        command = [sys.executable, "-m", "pytest", "-q", *selection, *(str(TESTS / file) for file in files)]
        log = options.out / f"{name.replace(' ', '_')}.log"
        with log.open("w") as output:
            try:
                subprocess.run(
                    command,
                    cwd=REPOSITORY,
                    env={**os.environ, **variables},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=TESTS_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                output.write(f"\nstopped after {TESTS_TIMEOUT_S:.0f} s\n")
        said[name] = log.read_text().rstrip().rpartition("\n")[2]
        sys.stdout.write(f"tests, {name}: {said[name]}\n")
        sys.stdout.flush()
    return said


def report_of(about: Mapping[str, Any], tests: Mapping[str, str], found: Mapping[str, Mapping[str, float]]) -> str:
    lines = ["# Tensors on an accelerator", "", *(f"- {name}: {value}" for name, value in about.items()), ""]
    lines += [f"- tests, {name}: {said}" for name, said in tests.items()]
    if found:
        copied, ddp, small = found["copies"], found["ddp"], found["1_kB"]
        gigabytes = about["bytes"] / 1e9
        copying_s = max(copied.values())
        lines += [
            f"- copies: {gigabytes / copied['to_host_s']:.1f} GB/s to the host, "
            f"{gigabytes / copied['to_device_s']:.1f} GB/s to the device",
            *(
                f"- {name.replace('_', ' ')}: {1e3 * summed['on_device_s']:.1f} ms on the device, "
                f"{1e3 * summed['in_host_memory_s']:.1f} ms in host memory, "
                f"{summed['on_device_s'] / max(summed['in_host_memory_s'], copying_s):.2f} times the longest part"
                for name, summed in found.items()
                if name in ("sum", *FORMATS)
            ),
            f"- 1 kB: {1e6 * small['on_device_s']:.0f} us on the device, "
            f"{1e6 * small['in_host_memory_s']:.0f} us in host memory",
            *(f"- waiting for {name}: {part:.1%} of a processor" for name, part in found["waiting"].items()),
            f"- DDP: a step of {1e3 * ddp['step_s']:.1f} ms, {1e3 * ddp['step_without_sums_s']:.1f} ms without sums, "
            f"sums alone {1e3 * ddp['sums_alone_s']:.1f} ms: {ddp['hidden_part']:.0%} of the shorter is hidden",
        ]
    return "\n".join(lines) + "\n"


def describe(options: argparse.Namespace) -> dict[str, Any]:
    """Describes the machine; empty if it has no accelerator."""
    import torch

    kind = torch.accelerator.current_accelerator(check_available=True)
    if options.double:
        name = "the double: host memory, whose figures mean nothing"
    elif kind is None:
        return {}
    else:
        module: Any = torch.get_device_module(kind)
        names = [module.get_device_name(index) for index in range(torch.accelerator.device_count())]
        name = f"{kind.type}: {', '.join(names)}"
    return {
        "device": name,
        "processors": os.cpu_count(),
        "machine": platform.platform(),
        "PyTorch": torch.__version__,
        "bytes": options.bytes,
    }


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=64 << 20, help="bytes of the tensor (default: %(default)s)")
    parser.add_argument("--width", type=int, default=2048, help="width of DDP's layers (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=7, help="runs of each measurement (default: %(default)s)")
    parser.add_argument("--double", action="store_true", help="use the device for tests")
    parser.add_argument("--no-tests", action="store_true", help="measure only")
    parser.add_argument("--out", type=Path, default=Path("build/bench/gpu"), help="folder (default: %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    about = describe(options)
    if not about:
        sys.stderr.write(
            "gpu: PyTorch finds no accelerator here. If the machine has one, install a PyTorch for it into the virtual "
            "environment (make bench NAMES=gpu TORCH=...), or name its device nodes to the container\n"
        )
        return NO_ACCELERATOR
    options.out = options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.double:
        subprocess.run([sys.executable, "-m", double.__name__], check=True)
    tests = {} if options.no_tests else run_tests(options)
    found = measure(options)
    (options.out / "gpu.json").write_text(json.dumps({"about": about, "tests": tests, **found}, indent=2) + "\n")
    text = report_of(about, tests, found)
    (options.out / "report.txt").write_text(text)
    sys.stdout.write(f"{text}report: {options.out}/report.txt\n")
    passed = all(re.match(r"[1-9]\d* passed, 0 failed, 0 timed out, ", said) for said in tests.values())
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
