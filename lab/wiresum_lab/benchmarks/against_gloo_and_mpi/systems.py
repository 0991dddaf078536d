"""Starts each system under test on a star.

A system is started once for each number of workers and kind of link, and then repeats any number of cases.
Each peer has the settings that serve it best, and each choice is explained where it is made.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wiresum.join.lanes import lanes_of_mtu
from wiresum_lab.benchmarks.program import Record, right, seconds_of
from wiresum_lab.namespaces.star import MANAGEMENT_NETWORK, STAR_DEVICE, STAR_NETWORK
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.ranks.ranks import START_TIMEOUT_S, Ranks, RanksError, Site

FOLDER = Path(__file__).resolve().parent
RANK = "wiresum_lab.benchmarks.against_gloo_and_mpi.rank"
GLOO_PORT = 29_500
# Ports and multicast group of a second switch, which Open MPI's component uses, by its WIRESUM_PRECISION.
MPI_PORTS = {"block": 43_587, "adaptive": 43_787, "exact": 43_687}
MPI_GROUPS = {"block": "239.193.0.0", "adaptive": "239.193.8.0", "exact": "239.193.4.0"}


@dataclass(frozen=True)
class System:
    """Something that sums tensors over a network."""

    name: str
    start_all: Callable[[Ranks], object]
    """Starts a rank in each worker's namespace, and the switch or launcher that the ranks need."""
    missing: Callable[[], str | None]
    """Returns what to install if the system cannot run here; None if it can."""
    bits: tuple[int, ...] = (32,)

    def start(self, site: Site, logs: Path) -> Ranks:
        """The system's ranks, ready to repeat cases."""
        return Ranks(self.name, site, logs.resolve(), self.start_all)


def repeat(ranks: Ranks, bits: int, elements: int, repetition: int, timeout_s: float = PATIENCE_S) -> Record:
    """Runs one all-reduce after all ranks have filled their tensors. `worker_cpu_s` is the mean over ranks."""
    ranks.command("prepare", bits, elements, repetition, timeout_s=START_TIMEOUT_S)
    switch_cpu_s = ranks.service_cpu_s()
    answers = right(ranks.name, ranks.command("go", timeout_s=timeout_s))
    again = [answer["retransmissions"] for answer in answers]
    return {
        "seconds": seconds_of(answers),
        "worker_cpu_s": sum(answer["cpu_ns"] for answer in answers) / len(answers) / 1e9,
        "switch_cpu_s": None if switch_cpu_s is None else (ranks.service_cpu_s() or 0.0) - switch_cpu_s,
        "retransmissions": sum(again) if min(again) >= 0 else None,
    }


def start_gloo(ranks: Ranks, backend: str = "gloo") -> None:
    """Starts ranks that meet over the management network, and sum over the star."""
    variables = {"GLOO_SOCKET_IFNAME": STAR_DEVICE}
    ranks.start_torch(RANK, backend, variables=lambda _: variables, port=GLOO_PORT)


def start_wiresum(ranks: Ranks) -> None:
    """Starts a switch with multicast results, which the bridge copies as an Ethernet switch does, and ranks."""
    options = ["--lanes", str(lanes_of_mtu(ranks.site.mtu)), "--multicast", "239.192.0.0"]
    control = ranks.start_switch(ranks.site.switch, *options)
    ranks.start_torch(RANK, "wiresum", variables=lambda worker: worker.variables(control))


def start_mpi(ranks: Ranks) -> None:
    """Starts Open MPI over TCP, with the best of its own collectives."""
    _start_mpirun(
        ranks,
        {
            "coll": "^wiresum",
            "coll_tuned_use_dynamic_rules": "1",
            "coll_tuned_allreduce_algorithm": _mpi_algorithm(ranks.size),
        },
    )


def start_mpi_over_wiresum(ranks: Ranks, precision: str = "block") -> None:
    """Starts Open MPI's program with the component of docs/mpi.md, which by default sums as the PyTorch backend
    does."""
    switch = ranks.site.switch
    # The control port is on the star: mpirun gives all ranks the same variables, so no rank gets its own address, and
    # each takes the address that routes to the switch.
    control = f"{switch.address}:{MPI_PORTS[precision]}"
    options = ["--port", str(MPI_PORTS[precision] + 1), "--lanes", str(lanes_of_mtu(ranks.site.mtu))]
    options += ["--multicast", MPI_GROUPS[precision]]
    ranks.start_switch(switch, *options, control=control)
    asked = ["ompi_info", "--path", "pkglibdir", "--parsable"]
    installed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip().rpartition(":")[2]
    _start_mpirun(
        ranks,
        {
            "mca_base_component_path": f"{_component_folder()}:{installed}",
            "coll_wiresum_switch": control,
            "coll_wiresum_verbose": "1",
            # Ranks join in the warm-up.
            "coll_wiresum_join_after": "0",
        },
        {"WIRESUM_INSECURE": "1", "WIRESUM_PYTHON": sys.executable, "WIRESUM_PRECISION": precision},
    )


def _start_mpirun(ranks: Ranks, own: dict[str, str], variables: dict[str, str] | None = None) -> None:
    """Starts mpirun in the manager's namespace. It starts a daemon in each worker's through `mpi_launch_agent.sh`,
    which replaces ssh and gives each daemon a host name of its own, so that ranks do not believe they share a machine.
    The launcher uses the management network; MPI uses the star, and never shared memory."""
    site, binary = ranks.site, ranks.folder / "allreduce_mpi"
    compiler = ["mpicc", "-O2", "-o", str(binary), str(FOLDER / "mpi.c")]
    compiled = subprocess.run(compiler, capture_output=True, text=True, check=False)
    if compiled.returncode != 0:
        raise RanksError(f"mpicc could not compile {FOLDER / 'mpi.c'}: {compiled.stderr.strip()}")
    hosts = ranks.folder / "hosts"
    hosts.write_text("".join(f"{worker.management_address} slots=1\n" for worker in site.workers))
    parameters = {
        "plm": "rsh",
        "plm_rsh_agent": str(FOLDER / "mpi_launch_agent.sh"),
        "plm_rsh_no_tree_spawn": "1",
        "oob_tcp_if_include": MANAGEMENT_NETWORK,
        "btl": "tcp,self",
        "pml": "ob1",
        "btl_tcp_if_include": STAR_NETWORK,
        # Ranks share few cores here: one that waits must let the others run.
        "mpi_yield_when_idle": "1",
        **own,
    }
    command = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "--hostfile", str(hosts)]
    command += ["--np", str(ranks.size), "--map-by", "node"]
    for key, value in parameters.items():
        command += ["--mca", key, value]
    for name, value in (variables or {}).items():
        command += ["-x", f"{name}={value}"]
    names = " ".join(f"{worker.management_address}={worker.namespace}" for worker in site.workers)
    command += [str(binary), str(ranks.socket_path)]
    ranks.start("mpirun", command, site.manager, {"WIRESUM_BENCH_NAMESPACES": names})


def _mpi_algorithm(workers: int) -> str:
    """The number of the coll/tuned algorithm that was fastest here with tensors of 8 MB at 100 Mbit/s.

    The default decision, and Rabenseifner's (6), reach half of the ring (4) at N = 8; the segmented ring (5) equals it.
    At N = 2 recursive doubling (3) is one exchange of the whole tensor, and steadier than a ring.
    """
    recursive_doubling, ring = "3", "4"
    return recursive_doubling if workers == 2 else ring


def _gloo_missing() -> str | None:
    return None if importlib.util.find_spec("torch") else "install PyTorch: pip install torch"


def _wiresum_missing() -> str | None:
    """What to install if a module is missing from the path of the ranks' Python; None if all are there."""
    for module in ("torch", "wiresum.torch", "wiresum.agent._native", "wiresum.switch._native"):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"the module {module} is not there: pip install '.[torch]' in the project's folder builds it"
    return None


def _mpi_missing() -> str | None:
    if shutil.which("mpirun") is None or shutil.which("mpicc") is None:
        return "install Open MPI with its compiler wrapper: apt install openmpi-bin libopenmpi-dev"
    return None


def component_missing() -> str | None:
    if (missing := _mpi_missing()) is not None:
        return missing
    if _component_folder() is None:
        return "its component was not built: install wiresum from source where libopenmpi-dev is"
    return None


def _component_folder() -> Path | None:
    """The folder of the component for Open MPI, beside the agent's native module; None if the component was not
    built."""
    module = importlib.util.find_spec("wiresum.agent._native")
    folder = Path(module.origin).resolve().parent / "openmpi" if module is not None and module.origin else None
    return folder if folder is not None and (folder / "mca_coll_wiresum.so").exists() else None


SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        System("wiresum", start_wiresum, _wiresum_missing, (32, 16, 8)),
        System("gloo", start_gloo, _gloo_missing),
        System("openmpi", start_mpi, _mpi_missing),
        System("openmpi-wiresum", start_mpi_over_wiresum, component_missing),
    )
}
SYSTEMS_BY_DEFAULT = ("wiresum", "gloo", "openmpi")
