"""Runs benchmarks by name, one after another: `make bench NAMES='dense racks'`.

Options after the names, or after `--`, go to each benchmark; with one name and --help, that benchmark explains its own
options.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from wiresum_lab import REPOSITORY

BENCHMARKS = {
    "dense": ("against_gloo_and_mpi", "dense all-reduce over Wiresum, Gloo and Open MPI"),
    "sparse": ("sparse", "tensors with blocks of zeros"),
    "time-to-loss": ("compress", "training to a loss, with every compression method and without (hours)"),
    "memory": ("compress.memory", "the memory of every compression method (without root)"),
    "aggregators": ("switches.aggregators", "a job on one, two and four software switches on links of their own"),
    "racks": ("switches.racks", "racks of workers below a spine: trees, one switch, and Gloo"),
    "hosts": ("switches.hosts", "several workers on each host: one stream for all, one for each, and Gloo"),
    "tcp": ("tcp", "a job beside TCP connections on one link"),
    "precision": ("precision", "error and cost of sums of floats: exact, in blocks, and over Gloo"),
    "gradients": (
        "gradients",
        "real gradients in blocks, exactly and over Gloo: loss curves, and what exactness costs",
    ),
    "reproducible": ("reproducible", "gradients that are the same for any number of workers: cost and error"),
    "callers": ("callers", "what an all-reduce costs its caller, over Wiresum and over Gloo"),
    "small": ("small", "how long a small sum takes, from call to return (two cores to itself)"),
    "gpu": ("gpu", "tensors on this machine's GPU: their tests, copies, sums, and DDP"),
    "packets": ("packets", "what a packet costs, by layer and by transport (two cores to itself)"),
    "against-last": ("packets.against_last", "what a packet costs, beside an earlier revision, in turns"),
    "scale": ("scale", "up to 4,096 workers in a simulated network"),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="make bench",
        usage="make bench NAMES='NAME ...' ARGS='...'",
        epilog="names:\n" + "\n".join(f"  {name:<12} {what}" for name, (_, what) in BENCHMARKS.items()),
        add_help=False,
    )
    parser.add_argument("names", nargs="+", choices=BENCHMARKS, metavar="NAME", help="names from the list below")
    words = sys.argv[1:]
    names_end = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
    names, arguments = words[:names_end], words[names_end:]
    if arguments[:1] == ["--"]:
        del arguments[0]
    if len(names) != 1 and {"-h", "--help"} & {*arguments}:
        parser.print_help()
        return 0
    for name in parser.parse_args(names).names:
        module, what = BENCHMARKS[name]
        print(f"{name}: {what}", flush=True)
        command = [sys.executable, "-m", f"wiresum_lab.benchmarks.{module}", *arguments]
        if code := subprocess.run(command, cwd=REPOSITORY, check=False).returncode:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
