"""Measures the duration of a small all-reduce, from call to return: make bench NAMES=small.

A worker and a software switch run on this machine, on a core each (`--cores`), over loopback and over shared memory
(DPDK's net_memif), with exact sums and with sums in blocks. The worker calls `wiresum_all_reduce` of libwiresum, which
returns with the sum, through ctypes, which takes about a microsecond itself. With more workers than cores, the
benchmark would measure how long a worker waits for its turn.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.resources import files
from multiprocessing.connection import Connection
from pathlib import Path

from wiresum_lab.benchmarks.program import Options, Record, keep, say
from wiresum_lab.namespaces.transports import missing
from wiresum_lab.processes import SwitchProcess, on_core

EAL = "--no-huge --no-pci -m 128"
SWITCH_ADDRESS, WORKER_ADDRESS = "10.213.0.1", "10.213.0.2"
"""Addresses over shared memory, which connects only these two."""
TRANSPORTS = {"udp": "UDP, loopback", "dpdk": "DPDK, net_memif"}
PRECISIONS = ("exact", "block")
WARM_UP = 200
RUN_TIMEOUT_S = 120.0


def device(folder: Path, role: str) -> str:
    """EAL arguments of one end of net_memif."""
    return f"{EAL} --vdev=net_memif0,role={role},socket={folder}/memif,socket-abstract=no"


def call(variables: dict[str, str], core: int, elements: int, calls: int, answer: Connection) -> None:
    """The worker process: sends the microseconds of each call, or the text of an error."""
    os.sched_setaffinity(0, {core})
    os.environ.update(variables)
    library = ctypes.CDLL(str(files("wiresum.agent") / "libwiresum.so.1"))
    library.wiresum_error_text.restype = ctypes.c_char_p

    def check(code: int) -> None:
        if code != 0:
            answer.send(library.wiresum_error_text().decode())
            raise SystemExit(1)

    session = ctypes.c_void_p()
    check(library.wiresum_join(b"small", 0, 1, None, 0, ctypes.c_double(60), ctypes.byref(session)))
    values = (ctypes.c_float * elements)(*range(elements))
    arguments = (session, values, values, ctypes.c_size_t(elements), 0, 0, None)
    times = []
    for _ in range(WARM_UP + calls):
        begun = time.perf_counter_ns()
        code = library.wiresum_all_reduce(*arguments)
        times.append((time.perf_counter_ns() - begun) * 1e-3)
        check(code)
    check(library.wiresum_leave(ctypes.byref(session)))
    # A sum over one worker leaves the values as they are.
    answer.send(times[WARM_UP:] if [*values] == [*map(float, range(elements))] else "the sums are wrong")


def measure(transport: str, precision: str, options: argparse.Namespace) -> Record:
    """Microseconds from call to return: the median, the first and the last decile. Raises a `ProgramError` if the
    switch cannot serve, and a `RuntimeError` if the worker gives no answer."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    at_switch, at_worker = options.cores
    variables = {"WIRESUM_PRECISION": precision, "WIRESUM_TRANSPORT": transport}
    with tempfile.TemporaryDirectory() as name:
        switch = ["--threads", "1", "--transport", transport]
        if transport == "dpdk":
            switch[-1] = f"dpdk:{device(Path(name), 'server')}"
            switch += ["--bind", SWITCH_ADDRESS]
            variables |= {"WIRESUM_ADDRESS": WORKER_ADDRESS}
            variables["WIRESUM_TRANSPORT"] = f"dpdk:{device(Path(name), 'client')}"
        with on_core(at_switch):
            served = SwitchProcess(Path(name), *switch)
        with served:
            variables |= {"WIRESUM_SWITCH": served.endpoint}
            worker = context.Process(target=call, args=(variables, at_worker, options.elements, options.calls, theirs))
            worker.start()
            theirs.close()  # so that the pipe ends with the worker
            try:
                said = ours.recv() if ours.poll(RUN_TIMEOUT_S) else "it did not come to an end"
            except EOFError:
                said = "it ended without an answer"
            finally:
                worker.kill()
                worker.join()
    if isinstance(said, str):
        raise RuntimeError(f"the worker over {TRANSPORTS[transport]}: {said}")
    tenths = statistics.quantiles(said, n=10)
    return {
        "transport": TRANSPORTS[transport],
        "precision": precision,
        "elements": options.elements,
        "median_us": statistics.median(said),
        "tenth_us": tenths[0],
        "nine_tenths_us": tenths[-1],
    }


def main(arguments: Sequence[str]) -> int:
    usable = os.sched_getaffinity(0)
    parser = Options("small", __doc__, workers=None, link_mbit=None)
    parser.add("--elements", 256, "elements of the tensor, in fp32")
    parser.add("--calls", 20_000, "calls of each kind")
    parser.add("--cores", [min(usable), max(usable)], "cores of switch and worker", nargs=2)
    parser.add("--transports", list(TRANSPORTS), "transports to measure", choices=TRANSPORTS)
    options = parser.parse_args(arguments)
    if not {*options.cores} <= usable:
        parser.error(f"there are no cores {options.cores} for this process: name others (--cores)")
    results = []
    for transport in options.transports:
        if reason := missing(transport):
            say(f"{TRANSPORTS[transport]} is left out: {reason}")
            continue
        results += [measure(transport, precision, options) for precision in PRECISIONS]
    keep(options.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
