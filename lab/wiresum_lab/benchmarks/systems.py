"""How each system under test is started on a star.

A system is started once for each number of workers and kind of link, and then repeats any number of cases.
What a peer is given is what serves it best; each choice is explained where it is made.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wiresum.join.constants import CONTROL_PORT, SWITCH_PORT
from wiresum_lab.namespaces.links import MTU_BYTES
from wiresum_lab.namespaces.star import MANAGEMENT_DEVICE, MANAGEMENT_NETWORK, STAR_DEVICE, STAR_NETWORK, Host, Star
from wiresum_lab.ranks.cohort import Cohort, CohortError

FOLDER = Path(__file__).resolve().parent
# What a collective may take before the system itself gives up. The benchmark's own limits are shorter.
SYSTEM_TIMEOUT_S = 300
GLOO_PORT = 29_500
WIRESUM_PORT = 29_501
# Of the switch beside it that Open MPI's component uses.
MPI_CONTROL_PORT, MPI_DATA_PORT = 43_587, 43_588


@dataclass(frozen=True)
class Workshop:
    """Folders of one run: sockets and binaries that are gone afterwards, logs that stay."""

    scratch: Path
    logs: Path


@dataclass(frozen=True)
class Site:
    """Where the ranks of a system run, and over what they talk."""

    ranks: Sequence[Host]
    switch: Host
    manager: Host
    device: str
    network: str
    management_device: str
    management_network: str
    mtu: int = MTU_BYTES

    @classmethod
    def of_star(cls, star: Star) -> Site:
        return cls(
            star.workers,
            star.switch,
            star.manager,
            STAR_DEVICE,
            STAR_NETWORK,
            MANAGEMENT_DEVICE,
            MANAGEMENT_NETWORK,
            star.link.mtu,
        )

    @classmethod
    def of_loopback(cls, host: Host, ranks: int) -> Site:
        """All in one namespace, over its loopback; packets as on Ethernet, though it would carry larger ones."""
        here = Host(host.namespace, "127.0.0.1", "127.0.0.1")
        return cls([here] * ranks, here, here, "lo", "127.0.0.0/8", "lo", "127.0.0.0/8")


class System(ABC):
    """Something that sums tensors over a network."""

    name: str
    title: str
    lane_bits: tuple[int, ...] = (32,)
    by_default = True
    is_alone = False
    """On a star of its own: it takes interfaces from the kernel, which others would feel."""

    @abstractmethod
    def missing(self) -> str | None:
        """What to install, if it cannot run here."""

    @abstractmethod
    def start(self, site: Site, workshop: Workshop) -> Cohort:
        """Its ranks, one in each worker's namespace, ready to repeat cases."""


class Gloo(System):
    name = "gloo"
    title = "Gloo"
    backend = "gloo"

    def missing(self) -> str | None:
        return None if importlib.util.find_spec("torch") else "install PyTorch: pip install torch"

    def start(self, site: Site, workshop: Workshop) -> Cohort:
        cohort = _new_cohort(self.name, site, workshop)
        return _started(cohort, lambda: self._start_ranks(cohort, site))

    def _start_ranks(self, cohort: Cohort, site: Site) -> None:
        # Ranks meet over the management network, and talk over the star.
        _start_torch_ranks(cohort, site, GLOO_PORT, lambda _: {"GLOO_SOCKET_IFNAME": site.device}, backend=self.backend)


class Wiresum(System):
    name = "wiresum"
    title = "Wiresum"
    lane_bits: tuple[int, ...] = (32, 16, 8)
    transport = "udp"

    def missing(self) -> str | None:
        if (module := _module_missing()) is not None:
            return f"the module {module} is not there: pip install '.[torch]' in the project's folder builds it"
        from wiresum_lab.namespaces.transports import missing

        return missing(self.transport)

    def start(self, site: Site, workshop: Workshop) -> Cohort:
        cohort = _new_cohort(self.name, site, workshop)
        return _started(cohort, lambda: self._start_all(cohort, site))

    def _start_all(self, cohort: Cohort, site: Site) -> None:
        control = f"{site.switch.management_address}:{CONTROL_PORT}"
        _start_switch(cohort, site, control, SWITCH_PORT, self._switch_options())
        _start_torch_ranks(
            cohort,
            site,
            WIRESUM_PORT,
            lambda worker: {
                "WIRESUM_SWITCH": control,
                "WIRESUM_INSECURE": "1",
                "WIRESUM_ADDRESS": worker.address,
                "WIRESUM_TRANSPORT": self.transport,
                "WIRESUM_DEVICE": self._device(),
                "GLOO_SOCKET_IFNAME": site.management_device,
            },
            backend="wiresum",
        )

    def _switch_options(self) -> list[str]:
        # The bridge copies what is for everybody, as an Ethernet switch does.
        return ["--multicast", "239.192.0.0"]

    def _device(self) -> str:
        return ""


class WiresumOverXdp(Wiresum):
    """AF_XDP at the workers and at the switch, which sends each worker a copy of its own."""

    name = "wiresum-xdp"
    title = "Wiresum, AF_XDP"
    lane_bits = (32,)
    by_default = False
    is_alone = True
    transport = "xdp"

    def _switch_options(self) -> list[str]:
        return ["--transport", self.transport] + (["--device", self._device()] if self._device() else [])


class WiresumOverDpdk(WiresumOverXdp):
    """The same over DPDK's net_af_packet: there is no network card here."""

    name = "wiresum-dpdk"
    title = "Wiresum, DPDK"
    transport = "dpdk"

    def start(self, site: Site, workshop: Workshop) -> Cohort:
        if site.mtu > MTU_BYTES:
            raise CohortError(
                f"{self.title} is left out at an MTU of {site.mtu}: its rings here hold Ethernet's frames"
            )
        return super().start(site, workshop)

    def _device(self) -> str:
        from wiresum_lab.namespaces.transports import EAL

        return EAL


class OpenMpi(System):
    """Open MPI over TCP.

    mpirun runs in the manager's namespace and starts a daemon in each worker's through `mpi_launch_agent.sh`, which
    stands in for ssh and gives each daemon a host name of its own, so that ranks do not believe they share a machine.
    The launcher talks over the management network, MPI over the star, and never through shared memory.
    """

    name = "openmpi"
    title = "Open MPI"

    def missing(self) -> str | None:
        if shutil.which("mpirun") is None or shutil.which("mpicc") is None:
            return "install Open MPI with its compiler wrapper: apt install openmpi-bin libopenmpi-dev"
        return None

    def start(self, site: Site, workshop: Workshop) -> Cohort:
        binary = self._compile(workshop)
        cohort = _new_cohort(self.name, site, workshop)
        return _started(cohort, lambda: self._start_mpirun(cohort, site, workshop, binary))

    def _compile(self, workshop: Workshop) -> Path:
        binary = workshop.scratch / "allreduce_mpi"
        if not binary.exists():
            source = FOLDER / "allreduce_mpi.c"
            result = subprocess.run(
                ["mpicc", "-O2", "-o", str(binary), str(source)], capture_output=True, text=True, check=False
            )
            if result.returncode != 0:
                raise CohortError(f"mpicc could not compile {source}: {result.stderr.strip()}")
        return binary

    def _parameters(self, site: Site) -> dict[str, str]:
        """What this system asks of Open MPI, beside what any does."""
        return {
            # The best of Open MPI's own.
            "coll": "^wiresum",
            "coll_tuned_use_dynamic_rules": "1",
            "coll_tuned_allreduce_algorithm": _mpi_algorithm(len(site.ranks)),
        }

    def _variables(self, site: Site) -> dict[str, str]:
        return {}

    def _start_mpirun(self, cohort: Cohort, site: Site, workshop: Workshop, binary: Path) -> None:
        hosts = workshop.scratch / f"{self.name}-hosts-{site.manager.namespace}"
        hosts.write_text("".join(f"{worker.management_address} slots=1\n" for worker in site.ranks))
        agents = {worker.management_address: worker.namespace for worker in site.ranks}
        parameters = {
            "plm": "rsh",
            "plm_rsh_agent": str(FOLDER / "mpi_launch_agent.sh"),
            "plm_rsh_no_tree_spawn": "1",
            "oob_tcp_if_include": site.management_network,
            "btl": "tcp,self",
            "pml": "ob1",
            "btl_tcp_if_include": site.network,
            # Ranks share few cores here: one that waits must let the others run.
            "mpi_yield_when_idle": "1",
            **self._parameters(site),
        }
        command = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "--hostfile", str(hosts)]
        command += ["--np", str(len(site.ranks)), "--map-by", "node"]
        for key, value in parameters.items():
            command += ["--mca", key, value]
        names = " ".join(f"{address}={namespace}" for address, namespace in agents.items())
        extra = {"WIRESUM_BENCH_NAMESPACES": names}
        for name, value in self._variables(site).items():
            command += ["-x", f"{name}={value}"]
        command += [str(binary), str(cohort.socket_path)]
        cohort.adopt(_logged(site.manager, command, extra, cohort.log("mpirun")))


class OpenMpiOverWiresum(OpenMpi):
    """The same program, launched the same way, with the component of docs/mpi.md."""

    name = "openmpi-wiresum"
    title = "Open MPI over Wiresum"
    by_default = False

    def missing(self) -> str | None:
        if (missing := super().missing()) is not None:
            return missing
        if _component_folder() is None:
            return "its component was not built: install wiresum from source where libopenmpi-dev is"
        return None

    def _parameters(self, site: Site) -> dict[str, str]:
        command = ["ompi_info", "--path", "pkglibdir", "--parsable"]
        installed = (
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().rpartition(":")[2]
        )
        return {
            "mca_base_component_path": f"{_component_folder()}:{installed}",
            "coll_wiresum_switch": self._control(site),
            "coll_wiresum_verbose": "1",
        }

    def _variables(self, site: Site) -> dict[str, str]:
        return {"WIRESUM_INSECURE": "1", "WIRESUM_PYTHON": sys.executable}

    def _start_mpirun(self, cohort: Cohort, site: Site, workshop: Workshop, binary: Path) -> None:
        _start_switch(cohort, site, self._control(site), MPI_DATA_PORT, ["--multicast", "239.193.0.0"])
        super()._start_mpirun(cohort, site, workshop, binary)

    def _control(self, site: Site) -> str:
        """On the star, so that the way to it is that of the data: mpirun gives all ranks the same variables, and none
        its own address."""
        return f"{site.switch.address}:{MPI_CONTROL_PORT}"


def _mpi_algorithm(workers: int) -> str:
    """The number of the coll/tuned algorithm that was fastest here with tensors of 8 MB at 100 Mbit/s.

    The default decision, and Rabenseifner's (6), reach half of the ring (4) at N = 8; the segmented ring (5) equals it.
    At N = 2 recursive doubling (3) is one exchange of the whole tensor, and steadier than a ring.
    """
    recursive_doubling, ring = "3", "4"
    return recursive_doubling if workers == 2 else ring


SYSTEMS: dict[str, type[System]] = {
    system.name: system for system in (Wiresum, WiresumOverXdp, WiresumOverDpdk, Gloo, OpenMpi, OpenMpiOverWiresum)
}
SYSTEMS_BY_DEFAULT = tuple(name for name, system in SYSTEMS.items() if system.by_default)


def _component_folder() -> Path | None:
    """Of Open MPI's component, which lies beside the agent's native module."""
    module = importlib.util.find_spec("wiresum.agent._native")
    folder = Path(module.origin).resolve().parent / "openmpi" if module is not None and module.origin else None
    return folder if folder is not None and (folder / "mca_coll_wiresum.so").exists() else None


def _start_switch(cohort: Cohort, site: Site, control: str, port: int, options: Sequence[str]) -> None:
    command = [sys.executable, "-m", "wiresum.cli", "switch", "--bind", site.switch.address, "--control", control]
    command += ["--port", str(port), "--insecure", "--mtu", str(site.mtu), *options]
    switch = _logged(site.switch, command, {}, cohort.log("switch"))
    cohort.adopt(switch)
    cohort.switch_pid = switch.pid


def _module_missing() -> str | None:
    """The first module that Wiresum needs and Python does not find, which looks where those of the ranks will."""
    for module in ("torch", "wiresum.torch", "wiresum.agent._native", "wiresum.switch._native"):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return module
    return None


def _new_cohort(name: str, site: Site, workshop: Workshop) -> Cohort:
    socket_path = workshop.scratch / f"{name}-{len(site.ranks)}.socket"
    return Cohort(name, len(site.ranks), socket_path, workshop.logs)


def _started(cohort: Cohort, start: Callable[[], None]) -> Cohort:
    try:
        start()
        cohort.await_ranks()
    except BaseException:
        cohort.abandon()
        raise
    return cohort


def _start_torch_ranks(
    cohort: Cohort, site: Site, port: int, variables: Callable[[Host], dict[str, str]], *, backend: str
) -> None:
    for rank, worker in enumerate(site.ranks):
        extra = {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(len(site.ranks)),
            "MASTER_ADDR": site.ranks[0].management_address,
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, str(FOLDER / "allreduce_rank.py"), backend, str(cohort.socket_path)]
        command.append(str(SYSTEM_TIMEOUT_S))
        variables_all = extra | variables(worker)
        cohort.adopt(_logged(worker, command, variables_all, cohort.log(f"rank{rank}")))


def _logged(host: Host, command: list[str], variables: dict[str, str], log: Path) -> subprocess.Popen[str]:
    with log.open("w") as stream:
        return host.popen(command, environment=os.environ | variables, stdout=stream, stderr=subprocess.STDOUT)
