"""How each system under test is started on a star.

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
from functools import partial
from pathlib import Path

from wiresum.join.lanes import lanes_of_mtu
from wiresum_lab.benchmarks.against_gloo_and_mpi.records import Repetition
from wiresum_lab.benchmarks.program import seconds_of
from wiresum_lab.namespaces import transports
from wiresum_lab.namespaces.links import MTU_BYTES
from wiresum_lab.namespaces.star import MANAGEMENT_NETWORK, STAR_DEVICE, STAR_NETWORK
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
    title: str
    start_all: Callable[[Ranks], object]
    """Starts a rank in each worker's namespace, and what they need."""
    missing: Callable[[], str | None]
    """What to install, if it cannot run here."""
    bits: tuple[int, ...] = (32,)
    by_default: bool = False
    is_alone: bool = False
    """Needs a star of its own: it takes interfaces from the kernel, which would disturb other systems."""
    mtu_max: int | None = None

    def start(self, site: Site, logs: Path) -> Ranks:
        """Its ranks, ready to repeat cases."""
        if self.mtu_max is not None and site.mtu > self.mtu_max:
            raise RanksError(f"{self.title} is left out at an MTU of {site.mtu}: its rings here hold Ethernet's frames")
        return Ranks(self.name, site, logs, self.start_all)


def repeat(ranks: Ranks, bits: int, elements: int, repetition: int, timeout_s: float) -> Repetition:
    """One all-reduce of every rank, after all have their tensors."""
    ranks.command("prepare", bits, elements, repetition, timeout_s=START_TIMEOUT_S)
    switch_cpu_s = ranks.service_cpu_s()
    answers = ranks.command("go", timeout_s=timeout_s)
    again = [answer["retransmissions"] for answer in answers]
    return Repetition(
        seconds=seconds_of(answers),
        cpu_seconds_worker=sum(answer["cpu_ns"] for answer in answers) / len(answers) / 1e9,
        cpu_seconds_switch=None if switch_cpu_s is None else (ranks.service_cpu_s() or 0.0) - switch_cpu_s,
        wrong_elements=sum(answer["wrong_elements"] for answer in answers),
        retransmissions=sum(again) if min(again) >= 0 else None,
    )


def start_gloo(ranks: Ranks, backend: str = "gloo") -> None:
    """Ranks meet over the management network, and talk over the star."""
    variables = {"GLOO_SOCKET_IFNAME": STAR_DEVICE}
    ranks.start_torch(RANK, backend, variables=lambda _: variables, port=GLOO_PORT)


def start_wiresum(ranks: Ranks, transport: str, device: str = "") -> None:
    if transport == "udp":
        # The bridge copies multicast packets, as an Ethernet switch does.
        options = ["--multicast", "239.192.0.0"]
    else:
        # The switch sends each worker a copy of its own.
        options = ["--transport", transport, *(["--device", device] if device else [])]
    control = ranks.start_switch(ranks.site.switch, "--lanes", str(lanes_of_mtu(ranks.site.mtu)), *options)
    own = {"WIRESUM_TRANSPORT": transport, "WIRESUM_DEVICE": device}
    ranks.start_torch(RANK, "wiresum", variables=lambda worker: worker.variables(control) | own)


def start_mpi(ranks: Ranks) -> None:
    """Open MPI over TCP, with the best of its own collectives."""
    _start_mpirun(
        ranks,
        {
            "coll": "^wiresum",
            "coll_tuned_use_dynamic_rules": "1",
            "coll_tuned_allreduce_algorithm": _mpi_algorithm(ranks.size),
        },
    )


def start_mpi_over_wiresum(ranks: Ranks, precision: str = "block") -> None:
    """The same program, launched the same way, with the component of docs/mpi.md; by default it sums as the PyTorch
    backend does."""
    switch = ranks.site.switch
    # On the star: mpirun gives all ranks the same variables, so none its own address, and they take the one that
    # routes to the switch.
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
            # The warm-up joins.
            "coll_wiresum_join_after": "0",
        },
        {"WIRESUM_INSECURE": "1", "WIRESUM_PYTHON": sys.executable, "WIRESUM_PRECISION": precision},
    )


def _start_mpirun(ranks: Ranks, own: dict[str, str], variables: dict[str, str] | None = None) -> None:
    """mpirun runs in the manager's namespace and starts a daemon in each worker's through `mpi_launch_agent.sh`, which
    stands in for ssh and gives each daemon a host name of its own, so that ranks do not believe they share a machine.
    The launcher talks over the management network, MPI over the star, and never through shared memory."""
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


def _wiresum_missing(transport: str) -> str | None:
    """Looks where the ranks' Python will."""
    for module in ("torch", "wiresum.torch", "wiresum.agent._native", "wiresum.switch._native"):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"the module {module} is not there: pip install '.[torch]' in the project's folder builds it"
    return transports.missing(transport)


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
    """Of Open MPI's component, which lies beside the agent's native module."""
    module = importlib.util.find_spec("wiresum.agent._native")
    folder = Path(module.origin).resolve().parent / "openmpi" if module is not None and module.origin else None
    return folder if folder is not None and (folder / "mca_coll_wiresum.so").exists() else None


def _wiresum(name: str, title: str, transport: str, device: str = "", mtu_max: int | None = None) -> System:
    start, missing = partial(start_wiresum, transport=transport, device=device), partial(_wiresum_missing, transport)
    is_udp = transport == "udp"
    bits = (32, 16, 8) if is_udp else (32,)
    return System(name, title, start, missing, bits, by_default=is_udp, is_alone=not is_udp, mtu_max=mtu_max)


SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        _wiresum("wiresum", "Wiresum", "udp"),
        _wiresum("wiresum-xdp", "Wiresum, AF_XDP", "xdp"),
        # Over DPDK's net_af_packet: there is no network card here.
        _wiresum("wiresum-dpdk", "Wiresum, DPDK", "dpdk", transports.EAL, mtu_max=MTU_BYTES),
        System("gloo", "Gloo", start_gloo, _gloo_missing, by_default=True),
        System("openmpi", "Open MPI", start_mpi, _mpi_missing, by_default=True),
        System("openmpi-wiresum", "Open MPI over Wiresum", start_mpi_over_wiresum, component_missing),
    )
}
SYSTEMS_BY_DEFAULT = tuple(name for name, system in SYSTEMS.items() if system.by_default)
