"""README and the guides, typed from top to bottom: every command as it is printed, on hosts with the printed addresses.

The environment is as after a login: nothing set but HOME and PATH, and Wiresum installed at /opt/wiresum. The hosts
share the working folder, as over NFS; it looks like a clone, which `path/to/wiresum` is, too. What a page leaves to its
reader (train.py, a hostfile) is in SCENES. pip finds what it is told to install, and does not install it again.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from wiresum_lab import REPOSITORY, tracked_files
from wiresum_lab.namespaces.hosts import PATH, Hosts
from wiresum_lab.namespaces.star import StarError
from wiresum_lab.pages import SHELL, Block, blocks, commands
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import Program, here, wait_until
from wiresum_lab.suite.proofs import PAGES

READY = r"\bready: "


class Rule(NamedTuple):
    """Where a command is typed, and what comes of it. The first whose pattern is in a command counts."""

    pattern: str
    at: tuple[str, ...] = ()
    """The scene's first host unless given."""
    until: str = ""
    """It goes on, and the next command is typed when it has said this, a regular expression."""
    shows: str = ""
    """It says this, too."""
    statuses: tuple[int, ...] = (0,)
    then: tuple[tuple[str, str], ...] = ()
    """What the text tells the reader to do after it: hosts and commands."""


class Scene(NamedTuple):
    """Sections of a page that a reader types one after the other on the same hosts."""

    page: str
    addresses: Mapping[str, str]
    rules: tuple[Rule, ...]
    files: Mapping[str, str] = {}
    """The reader's. {0} is the first Python block of the scene, and so on."""
    begin: str = ""
    """The first section; the page's first without."""
    end: str = ""
    """The section that is no longer in it."""
    before: tuple[tuple[str, str], ...] = ()
    """What the text tells the reader to do at first: hosts and commands."""
    after: tuple[str, ...] = ()
    """What a reader does with the Python blocks in the end."""
    variables: Mapping[str, str] = {}


HAS_BMV2 = shutil.which("simple_switch_grpc", path=PATH) is not None
LACKING = {
    r"^sudo apt-get ": "installs packages of the system",
    r"^git clone ": "needs the network",
    r"^make demo$|^make test$": "run by themselves",
    r"python3 -m venv |^ln -s /opt/wiresum/": "makes the installation that the hosts have",
    r"^(MPI4PY|HOROVOD)_SOURCE=|^pip install mpi4py|^printf .*g\+\+20|HOROVOD_WITH|^horovodrun ": "other projects",
    r"/cluster-tofino\.toml": "needs a Tofino's compiler and switch",
    r"^journalctl ": "needs systemd",
}
"""Commands that are not typed, and why."""
if not HAS_BMV2:
    LACKING[r"/cluster-bmv2\.toml"] = "needs simple_switch_grpc"


def lacking(command: str) -> bool:
    return any(re.search(pattern, command) for pattern in LACKING)


SWITCH_AND_WORKERS = {"switch": "10.0.0.1"} | {f"worker{n}": f"10.0.0.{11 + n}" for n in range(4)}
WORKERS = ("worker0", "worker1", "worker2", "worker3")

TRAINED_IN_THE_NETWORK = """
for _ in range(3):
    model(torch.randn(8, 4096)).sum().backward()
import wiresum.torch
assert wiresum.torch.stats().collectives_network["all_reduce"], wiresum.torch.stats()
"""
CLUSTER = {"desk": "10.0.0.100", "switch": "10.0.0.1", "soft2": "10.0.0.2", "controller": "10.0.0.5"}
CLUSTER |= {"worker0": "10.0.0.11", "worker1": "10.0.0.12"}
TORCHRUN = "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 10.0.0.11:29500 train.py"
MAKE_PKI = ("desk", "wiresum ca init pki --address 10.0.0.1 --address 10.0.0.5")
MAKES_A_HOST = "^ln -s|^useradd|^install"
IS_A_SERVICE = (
    Rule(MAKES_A_HOST, at=("switch", "controller")),
    Rule("systemctl enable --now wiresum-(switch|controller)", until=READY),
)
"""For what cluster.md has of services."""
WITH_SERVICES = tuple(
    (at, command)
    for block in blocks(REPOSITORY / "docs/cluster.md")
    if block.section == "As services"
    for command in commands(block)
    if not lacking(command) and "worker" not in command
    for at in (("switch", "controller") if re.search(MAKES_A_HOST, command) else ("desk",))
)
"""The commands there that make a switch and its controller, with which other pages begin."""
BMV2 = (
    ("soft2", "for n in 0 1 2; do ip link add veth$n type veth peer name end$n && ip link set veth$n up; done"),
    ("soft2", "nft -f controller/deploy/nftables-bmv2.conf"),
    (
        "soft2",
        "simple_switch_grpc --no-p4 -i 0@veth0 -i 1@veth1 -i 2@veth2 -- --grpc-server-addr 127.0.0.1:9559",
    ),
)
"""As the head of cluster-bmv2.toml has it."""

START_A_SWITCH = tuple(
    ("switch", command)
    for block in blocks(REPOSITORY / "README.md")
    if block.section == "Train on several hosts" and "wiresum switch" in block.text
    for command in commands(block)
)
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""Open MPI refuses to run as root, as which hosts are made here, without being told twice."""
MPI_PROGRAM = """
#include <mpi.h>
#include <stdlib.h>
int main(int argc, char **argv) {
  int size, count = 1 << 16, sums = 20;
  float *values = malloc(count * sizeof(float));
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  while (sums-- > 0) {
    for (int i = 0; i < count; ++i) values[i] = 1;
    MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; ++i)
      if (values[i] != size) return 1;
  }
  return MPI_Finalize();
}
"""

TRAINING = f"""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("wiresum")
model = DistributedDataParallel(torch.nn.Linear(4096, 4))
{TRAINED_IN_THE_NETWORK}
dist.destroy_process_group()
"""

IN_PLACE_OF_NCCL = """
import os
import subprocess
if os.environ["LOCAL_RANK"] == "0":  # a node's, as NCCL's
    assert os.environ["NCCL_COLLNET_ENABLE"] == "1"
    plugin = f"libnccl-net-{os.environ['NCCL_NET_PLUGIN']}.so"
    rank, size = os.environ["GROUP_RANK"], os.environ["GROUP_WORLD_SIZE"]
    subprocess.run(["./node", plugin, "handles", rank, size, "sums", "1"], check=True)
"""
"""It needs no GPU: the nodes call the plug-in as NCCL does."""

SCENES = {
    "torch": Scene(
        "docs/torch.md",
        SWITCH_AND_WORKERS,
        (
            Rule("^wiresum doctor", at=("worker0",), statuses=(0, 1), shows="cannot|no switch|nothing"),
            Rule("^wiresum switch", until=READY),
            Rule("^export WIRESUM_SWITCH|torchrun", at=WORKERS),
        ),
        before=START_A_SWITCH,
        files={
            "train.py": f"""
import torch
model = torch.nn.Linear(4096, 4)
{{0}}
{TRAINED_IN_THE_NETWORK}
{{2}}
optimizer, step = torch.optim.SGD(model.parameters(), lr=0.1), 0
def train(model, optimizer, step):
    return step + 1
{{1}}
assert step == 1
dist.destroy_process_group()
{{3}}
dist.all_reduce(torch.ones(100_000))
assert wiresum.torch.stats().collectives_network["all_reduce"]
dist.destroy_process_group()
""",
        },
    ),
    "install": Scene("docs/install.md", {"switch": "10.0.0.1"}, ()),
    "cluster, two hosts": Scene(
        "docs/cluster.md",
        CLUSTER,
        (
            Rule("^wiresum switch", at=("switch",), until=READY),
            Rule("^export|^wiresum doctor|^torchrun", at=("worker0", "worker1")),
            Rule("^wiresum top", until="jobs"),
        ),
        files={"train.py": TRAINING},
        end="As services",
    ),
    "cluster, services": Scene(
        "docs/cluster.md",
        CLUSTER,
        (*IS_A_SERVICE, Rule("^export|^wiresum doctor|^torchrun", at=("worker0", "worker1"))),
        files={"train.py": TRAINING},
        begin="As services",
        end="bmv2",
        before=(MAKE_PKI, ("worker0", "useradd alice"), ("worker1", "useradd alice")),
        after=(
            "export WIRESUM_SWITCH=10.0.0.5:43487 WIRESUM_TLS=/etc/wiresum/worker",
            "wiresum doctor",
            TORCHRUN,
        ),
    ),
    "cluster, bmv2": Scene(
        "docs/cluster.md",
        CLUSTER,
        (Rule("^simple_switch_grpc", until="as port 2"), Rule("cluster-bmv2", at=("soft2",), until=READY)),
        begin="bmv2",
        before=BMV2 * HAS_BMV2,
    ),
    "availability": Scene(
        "docs/availability.md",
        CLUSTER,
        (
            *IS_A_SERVICE,
            Rule("enable --now wiresum-standby", at=("controller",), until="standing by"),
            Rule("^sed|^systemctl", at=("controller",)),
            Rule("^wiresum backup", at=("controller",), shows="that have ended"),
            Rule("^wiresum restore", at=("controller",), statuses=(1,), shows="a controller uses the state"),
            Rule("issue controller", then=(("controller", "ip address add 10.0.0.6/24 dev star0"),)),
        ),
        before=(MAKE_PKI, *WITH_SERVICES),
    ),
    "runbook": Scene(
        "docs/runbook.md",
        CLUSTER,
        (
            *IS_A_SERVICE,
            Rule("^wiresum doctor", statuses=(0, 1), shows="10.0.0.6:43487"),  # a standby that is not there
        ),
        before=(MAKE_PKI, *WITH_SERVICES),
        after=(
            "cmp pki/controller/tls.key <(ssh root@10.0.0.5 setpriv --reuid wiresum --regid wiresum --clear-groups cat "
            "/etc/wiresum/controller/tls.key)",
        ),
    ),
    "libwiresum": Scene(
        "docs/libwiresum.md",
        {"switch": "10.0.0.1"},
        (Rule("^wiresum switch", until=READY), Rule("^./all_reduce", shows="rank 1: every element is")),
    ),
    "horovod": Scene(
        "docs/horovod.md",
        {"switch": "10.0.0.1"},
        (Rule("^wiresum switch", until=READY), Rule("digits.py", shows="accuracy")),
        files={"hvd_train.py": "{0}"},
        after=("python hvd_train.py",),
        variables=AS_ROOT,
    ),
    "mpi": Scene(
        "docs/mpi.md",
        {"switch": "10.0.0.1"},
        (Rule("^wiresum switch", until=READY), Rule("^mpirun", shows="[1-9][0-9]* collectives through the network")),
        files={"hosts": "localhost slots=8\n", "program.c": MPI_PROGRAM},
        before=(("switch", "mpicc -o program program.c"),),
        variables=AS_ROOT | {"OMPI_MCA_coll_wiresum_verbose": "1"},
    ),
    "nccl": Scene(
        "docs/nccl.md",
        SWITCH_AND_WORKERS,
        (
            Rule("^wiresum switch", until=READY),
            Rule("^export", at=WORKERS),
            Rule("^torchrun", at=WORKERS, shows=r"of 4 sums in job nccl-"),
        ),
        files={"train.py": IN_PLACE_OF_NCCL},
        before=(
            ("switch", "wiresum ca init pki --address 10.0.0.1"),
            ("switch", "c++ -std=c++20 plugins/nccl/tests/node.cpp -o node -ldl -pthread && mkdir handles"),
        ),
        variables={"NCCL_DEBUG": "INFO"},
    ),
    "README": Scene(
        "README.md",
        SWITCH_AND_WORKERS,
        (
            Rule("^wiresum switch", until=READY),
            Rule("^wiresum top", until="jobs"),
            Rule("^export WIRESUM_SWITCH|torchrun", at=WORKERS),
        ),
        files={
            "train.py": f"""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
model = torch.nn.Linear(4096, 4)
loss = torch.ones(1, requires_grad=True).sum()
{{0}}
{TRAINED_IN_THE_NETWORK}
dist.destroy_process_group()
"""
        },
    ),
}


EVERY_CHANGE = ("README",)
"""The first page that a reader types. The others are typed each night, and before what changes them lands."""


class Typist:
    """Types at the hosts of a scene."""

    def __init__(self, scene: Scene, hosts: Hosts, folder: Path, cleanup: ExitStack) -> None:
        self._scene, self._hosts, self._folder, self._cleanup = scene, hosts, folder, cleanup
        self._work = folder / "work"
        self._typed = 0

    def type(self, command: str, rule: Rule) -> None:
        programs = [self._start(command, at) for at in rule.at]
        for program in programs:
            if rule.until:
                says = f"{program.name} says {rule.until}"  # its shell may have ended: many run in the background
                wait_until(lambda: re.search(rule.until, program.said(), re.MULTILINE), says, error=program.timed_out)  # noqa: B023
            else:
                ended = f"{program.name} ends"
                wait_until(lambda: program.exit_code is not None, ended, 3 * PATIENCE_S, error=program.timed_out)  # noqa: B023
                assert program.exit_code in rule.statuses, f"{program.name}: {program.exit_code}\n{program.said()}"
                assert re.search(rule.shows, program.said(), re.MULTILINE), f"{rule.shows}\n{program.said()}"
                assert "does not provide the extra" not in program.said(), program.said()  # pip, which goes on
        for host, following in rule.then:
            self.type(following, Rule("", at=(host,)))

    def _start(self, command: str, at: str) -> Program:
        host = self._hosts[at]
        exported = host.home / "exported"
        variables = {
            "PATH": PATH,
            "HOME": str(host.home),
            "LANG": "C.UTF-8",
            "PIP_DRY_RUN": "1",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # which is how pip spells that it does not isolate
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
            **self._scene.variables,
        }
        script = f"[ ! -f {exported} ] || . {exported}\n{command}\nstatus=$?\nexport -p >{exported}\nexit $status"
        clean = ["env", "-i", *(f"{name}={value}" for name, value in variables.items())]
        self._typed += 1
        program = Program(
            host.command(*clean, "bash", "-c", script),
            self._folder / f"{self._typed:02}-{at}.log",
            at=functools.partial(here, cwd=self._work),
            name=f"`{command}` at {at}",
        )
        self._cleanup.callback(program.stop)
        return program


@pytest.fixture
def folder(tmp_path: Path, wheel: Path) -> Path:
    """With a working folder that is like a clone."""
    work = tmp_path / "work"
    for path in tracked_files():
        copy = work / path.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    (work / "path/to").mkdir(parents=True)
    (work / "path/to/wiresum").symlink_to(work)
    (work / "path/to" / wheel.name).symlink_to(wheel)
    tmp_path.chmod(0o755)
    return tmp_path


def blocks_of(scene: Scene) -> list[Block]:
    found = blocks(REPOSITORY / scene.page)
    sections = [block.section for block in found]
    begin = sections.index(scene.begin) if scene.begin else 0
    end = sections.index(scene.end) if scene.end else len(found)
    return found[begin:end]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in EVERY_CHANGE else pytest.mark.nightly) for name in SCENES],
)
def test_every_command_does_what_the_page_says(name: str, folder: Path) -> None:
    scene = SCENES[name]
    if os.geteuid() != 0:
        pytest.skip("the pages are not typed: hosts of their own need root")
    shown = blocks_of(scene)
    python = [block.text for block in shown if block.language == "python"]
    used = set()
    for path, content in scene.files.items():
        used |= {number for number in range(len(python)) if f"{{{number}}}" in content}
        (folder / "work" / path).write_text(re.sub(r"\{(\d)\}", lambda found: python[int(found[1])], content))
    assert used == set(range(len(python))), f"{scene.page}: a Python block is in no file that is run"
    with ExitStack() as cleanup:
        try:
            hosts = cleanup.enter_context(Hosts(folder, scene.addresses))
        except StarError as error:
            pytest.skip(str(error))
        for host in hosts:
            keep_compiled(host.home)
        typist = Typist(scene, hosts, folder, cleanup)
        for at, command in scene.before:
            typist.type(command, rule_for(command, scene)._replace(at=(at,)))
        for block in shown:
            for command in commands(block) if block.language in SHELL else []:
                if not lacking(command):
                    typist.type(command, rule_for(command, scene))
        for command in scene.after:
            typist.type(command, rule_for(command, scene))


def rule_for(command: str, scene: Scene) -> Rule:
    found = next((rule for rule in scene.rules if re.search(rule.pattern, command)), Rule(""))
    return found if found.at else found._replace(at=(next(iter(scene.addresses)),))


def keep_compiled(home: Path) -> None:
    """The backend's C++ part, which takes half a minute to compile."""
    (home / ".cache").mkdir()
    (home / ".cache/torch_extensions").symlink_to(Path("~/.cache/torch_extensions").expanduser())


def test_every_command_of_these_pages_is_in_a_scene() -> None:
    pages = {"README.md", *(f"docs/{name}.md" for name in PAGES)}
    assert pages == {scene.page for scene in SCENES.values()}
    for page in pages:
        in_scenes = [block for scene in SCENES.values() if scene.page == page for block in blocks_of(scene)]
        assert sorted(in_scenes) == sorted(blocks(REPOSITORY / page)), f"{page}: every block once"
