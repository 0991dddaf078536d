"""`make mininet` as users start it; nothing of it remains, however it ends. Needs root."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until
from wiresum_mininet import __main__ as program
from wiresum_mininet import topology

from .leftovers import namespaces_of, now, wait_until_empty
from .terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def start(output: Path, *arguments: str) -> Started:
    return Started(
        [sys.executable, "-m", "wiresum_mininet", "--switch", "software", "--output", str(output), *arguments]
    )


class Started:
    """The program and all its descendants, which are found by a marker in their environment."""

    def __init__(self, command: Sequence[str]) -> None:
        self._word = f"WIRESUM_TEST_WORD={uuid.uuid4()}"
        name, _, value = self._word.partition("=")
        self.process = subprocess.Popen(
            command,
            env=os.environ | {name: value},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def processes(self) -> dict[int, str]:
        """Command lines by process id."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if self._word.encode() in (path / "environ").read_bytes():
                    found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def namespaces(self) -> set[str]:
        return namespaces_of(self.processes()) - namespaces_of([os.getpid()])

    def first(self) -> int:
        """The first process of the PID namespace, which unshare(1) has started."""
        (unshare,) = [number for number, command in self.processes().items() if command.startswith("unshare ")]
        return int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text())


def signal_to(number: int) -> Callable[[Started], None]:
    return lambda started: started.process.send_signal(number)


ENDS: dict[str, Callable[[Started], None]] = {
    "SIGTERM": signal_to(signal.SIGTERM),
    "SIGHUP": signal_to(signal.SIGHUP),
    "Ctrl-C": lambda started: os.killpg(started.process.pid, signal.SIGINT),
    "kill -9": signal_to(signal.SIGKILL),
    "kill -9 of the first process": lambda started: os.kill(started.first(), signal.SIGKILL),
}


@pytest.mark.parametrize("how", ENDS)
def test_nothing_remains_however_it_ends(how: str, mininet_here: None, tmp_path: Path) -> None:
    commands = tmp_path / "commands"
    commands.write_text("h1 sleep 1000 &\nh2 sh -c 'trap : TERM HUP; sleep 1001'\n")
    started = start(tmp_path / "net", "--commands", str(commands))
    try:
        wait_until(lambda: any("sleep 1001" in one for one in started.processes().values()), "commands ran")
        inside = started.namespaces()
        assert len(inside) == 6  # five hosts and a switch
        at = now()
        ENDS[how](started)
        started.process.communicate(timeout=PATIENCE_S)
        wait_until(lambda: not started.processes(), "all processes had ended")
        wait_until_empty(inside, started_before=at)
        interfaces = subprocess.run(["ip", "-br", "link"], check=True, capture_output=True, text=True).stdout
        assert "s1-eth" not in interfaces
    finally:
        started.process.kill()
        started.process.communicate()


SCRIPT = """
import os, sys
from wiresum_mininet import mininet_package, topology
mininet_package.import_mininet()
from wiresum_mininet.nodes import Workplace
from pathlib import Path
from wiresum_mininet.wiresum_net import WiresumNet
net = WiresumNet(topology.find("one-switch"), kind="software", workplace=Workplace(Path({output!r})))
net.start()
net["h1"].cmd("sleep 1000 &")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", [[], ["nohup"]], ids=["alone", "under_nohup"])
def test_nothing_remains_of_a_killed_script_that_uses_the_classes(
    how: list[str], mininet_here: None, tmp_path: Path
) -> None:
    script = SCRIPT.format(output=str(tmp_path / "net"))
    started = Started([*how, sys.executable, "-c", script])
    assert started.process.stdout is not None
    while started.process.stdout.readline() != "ready\n":
        assert started.process.poll() is None
    inside = started.namespaces()
    assert len(inside) == 6
    at = now()
    started.process.kill()
    started.process.communicate()
    wait_until(lambda: not started.processes(), "all processes had ended")
    wait_until_empty(inside, started_before=at)


@pytest.mark.nightly
def test_two_networks_need_two_folders(mininet_here: None, tmp_path: Path) -> None:
    commands = tmp_path / "commands"
    commands.write_text("sh sleep 1000\n")
    first = start(tmp_path / "net", "--commands", str(commands))
    try:
        wait_until((tmp_path / "net/logs").exists, "it had begun")
        second = start(tmp_path / "net")
        output, _ = second.process.communicate(timeout=PATIENCE_S)
        assert second.process.returncode == 2
        assert "choose another --output" in " ".join(output.split())
        commands.with_name("others").write_text("pingall\n")
        beside = start(tmp_path / "other", "--commands", str(commands.with_name("others")))
        output, _ = beside.process.communicate(timeout=PATIENCE_S)
        assert "0% dropped (20/20 received)" in output
        assert first.process.poll() is None
    finally:
        first.process.kill()
        first.process.communicate()
    wait_until(lambda: not first.processes(), "all processes had ended")


def test_the_prompt_opens_on_a_terminal_and_exit_ends_it(mininet_here: None, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "wiresum_mininet", "--switch", "software", "--output", str(tmp_path)]
    with contextlib.closing(Terminal(command, tmp_path)) as terminal:
        assert "the controller runs at 10.0.0.100:43487" in terminal.until_prompt()
        assert "0% dropped (20/20 received)" in terminal.type("pingall")
        assert "0 of 4 at 10.0.0.100:43487" in terminal.type("h1 echo $RANK of $WORLD_SIZE at $WIRESUM_SWITCH")
        assert "in 1000 elements, once: right everywhere" in terminal.type("sum 1000")
        assert "*** Done" in terminal.type("exit")
        assert terminal.process.wait(PATIENCE_S) == 0


@pytest.mark.nightly
def test_a_training_gives_tables_a_picture_and_the_same_bits_as_on_loopback(mininet_here: None, tmp_path: Path) -> None:
    """The network has two racks with one worker each."""
    document = json.loads((topology.FOLDER / "racks" / "topology.json").read_text())
    left_out = [f"h{number}" for number in (2, 3, 4, 6, 7, 8)]
    document["hosts"] = {name: host for name, host in document["hosts"].items() if name not in left_out}
    document["links"] = [link for link in document["links"] if link[0] not in left_out]
    (tmp_path / "small.json").write_text(json.dumps(document))
    network = ("--topology", str(tmp_path / "small.json"), "--gloo", "--no-captures")
    started = start(tmp_path, "train", "--epochs", "1", "--width", "2", *network)
    output, _ = started.process.communicate(timeout=4 * PATIENCE_S)
    assert started.process.returncode == 0, output
    assert "bit for bit the same" in output
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["parameters_identical"] is True
    assert found["steps"] == 22
    ports = ["l1-eth1", "l1-eth5", "l2-eth1", "l2-eth5", "s1-eth1", "s1-eth2", "s1-eth3"]
    assert sorted(found["ports"]) == sorted(found["ports_gloo"]) == ports
    # Each worker's gradients cross the link to its leaf once, and the leaf's uplink once; sums come back likewise.
    for port in ports[:4]:
        assert all(found["ports"][port][way] > 44 * 1500 for way in ("bytes_in", "bytes_out"))
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert not list((tmp_path / "pcaps").iterdir())
    assert not started.processes()


def run(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "wiresum_mininet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_the_topologies_are_listed() -> None:
    code, output = run("list")
    assert code == 0
    for name in ("one-switch", "leaf-spine", "ethernet"):
        assert name in output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--topology", "ring"), "no topology is called ring: choose one of ethernet, leaf-spine, one-switch"),
        (("--loss", "2"), "loss is a fraction of packets"),
        (("--rate", "5000"), "rate_mbit must be above 0 and at most 1000"),
        (("--commands", "/nowhere/at/all"), "No such file"),
    ],
)
def test_an_invalid_choice_is_refused_with_the_valid_ones(arguments: tuple[str, ...], complaint: str) -> None:
    code, output = run(*arguments)
    assert code == 2
    assert complaint in output


def test_without_root_the_error_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert program.main([]) == 2
    assert "Mininet needs root: sudo make mininet" in capsys.readouterr().out


def test_without_bmv2_it_uses_software_switches_and_says_so(
    mininet_here: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(program.world, "run", lambda argv: started.append(list(argv)) or 0)
    real = program.shutil.which
    monkeypatch.setattr(program.shutil, "which", lambda name: None if name == "simple_switch_grpc" else real(name))
    assert program.main(["--output", str(tmp_path)]) == 0
    assert "the switches are software switches" in " ".join(capsys.readouterr().out.split())
    assert started[0][-2:] == ["--switch", "software"]
    assert program.main(["--output", str(tmp_path), "--switch", "bmv2"]) == 2
    assert "take --switch software" in capsys.readouterr().out
