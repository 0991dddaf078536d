"""`wiresum switch` as a process."""

from __future__ import annotations

import os
import re
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

from wiresum import join
from wiresum.join.constants import THREADS_MAX
from wiresum.join.installation import how_to_install
from wiresum.join.served import ServedJob, pack
from wiresum.switch.command import switch
from wiresum_lab.doubles.controller import Client
from wiresum_lab.doubles.p4runtime_controller import Controller
from wiresum_lab.doubles.workers import RESULT, DataplaneHarness, Packet
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import unused_port, wait_until

READY = re.compile(
    r"ready: (?:control|P4Runtime) 127\.0\.0\.1:(\d+)(?:, metrics 127\.0\.0\.1:(\d+))?"
    r", data 127\.0\.0\.1:(\d+)-(\d+) \((\d+) threads, 256 slots"
)


def command_line(*arguments: str, without: Sequence[str] = ()) -> list[str]:
    missing = "".join(f"sys.modules[{module!r}] = None; " for module in without)
    program = f"import sys; {missing}from wiresum.switch.command import switch; switch()"
    return [sys.executable, "-c", program, *arguments]


class SwitchProcess:
    def __init__(self, *arguments: str, serves: str, without: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command_line(serves, "127.0.0.1:0", "--port", "0", "--slots", "256", *arguments, without=without),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        ready = READY.match(self.line())
        assert ready, self.process.communicate(timeout=PATIENCE_S)
        self.control_port, self.metrics_port, self.data_port = int(ready[1]), int(ready[2] or 0), int(ready[3])

    def line(self) -> str:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(PATIENCE_S), "the switch says nothing"
        return self.process.stdout.readline()

    def scrape(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=PATIENCE_S) as answer:
            lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(cleanup: ExitStack, *arguments: str, serves: str = "--control", without: Sequence[str] = ()) -> SwitchProcess:
    """`without`: modules that cannot be imported."""
    running = SwitchProcess(*arguments, serves=serves, without=without)
    cleanup.callback(running.process.wait, PATIENCE_S)
    cleanup.callback(running.process.kill)
    return running


def test_the_help_says_that_a_switch_by_itself_has_no_quotas() -> None:
    said = " ".join(CliRunner().invoke(switch, ["--help"]).output.split())
    assert "It has no quotas: a tenant may have all slots and jobs that are free" in said


def test_workers_join_and_sum_and_the_metrics_show_it(cleanup: ExitStack, harness: DataplaneHarness) -> None:
    running = start(cleanup, "--metrics", "127.0.0.1:0")
    assert running.scrape()["wiresum_dataplane_results_total"] == 0
    client = Client(running.control_port)
    cleanup.callback(client.close)
    sockets = [harness.open_socket() for _ in range(2)]
    asked = []
    for rank, made in enumerate(sockets):
        host, port = made.getsockname()
        endpoint = join.Endpoint(address=host, port=port)
        asked.append(client.join_soon(rank=rank, world_size=2, endpoint=endpoint, threads_max=1, lanes_max=2))
    for rank, answer in enumerate(asked):
        grant = answer.result()
        assert grant.switch_endpoint == join.Endpoint(address="127.0.0.1", port=running.data_port)
        packet = Packet(
            job=grant.job,
            key=grant.key,
            worker=grant.worker,
            cell=1,
            round=1,
            words=(rank + 1, 7),
        )
        sockets[rank].sendto(packet.to_bytes(), ("127.0.0.1", running.data_port))
    for made in sockets:
        result = Packet.from_bytes(made.recv(65536))
        assert (result.kind, result.words) == (RESULT, (3, 14))
    wait_until(lambda: running.scrape()["wiresum_dataplane_datagrams_sent_total"] == 2, "both results are counted")
    found = running.scrape()
    assert found["wiresum_dataplane_results_total"] == found["wiresum_dataplane_jobs"] == 1
    assert found['wiresum_dataplane_packets_total{reason="admitted"}'] == 2
    assert found["wiresum_dataplane_datagrams_received_total"] == 2
    assert found["wiresum_dataplane_cpu_seconds_total"] > 0
    assert [value for name, value in found.items() if name.startswith("wiresum_switch_slots{")] == [256]
    assert running.end(signal.SIGTERM) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly_and_frees_the_ports(cleanup: ExitStack, number: signal.Signals) -> None:
    ports = unused_port(THREADS_MAX), unused_port()
    for _ in range(2):
        running = start(cleanup, "--port", str(ports[0]), "--control", f"127.0.0.1:{ports[1]}")
        assert (running.data_port, running.control_port) == ports
        assert running.end(number) == (0, "")


def test_it_ends_after_its_parent(cleanup: ExitStack) -> None:
    """The parent is a shell, and the switch its child."""
    ours, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    cleanup.callback(ours.close)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        at = "{}:{}".format(*listener.getsockname())
        socket.send_fds(ours, [pack([ServedJob("a-job", "", "00", 1, 16)])], [listener.fileno()])
    options = ["--control", at, "--port", "0", "--slots", "256", "--fallback"]
    shell = f"exec 3<&0; {shlex.join(command_line(*options))} $$ <&3 & echo $!; wait"
    with its_end:
        parent = subprocess.Popen(["sh", "-c", shell], stdin=its_end.fileno(), stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert READY.match(parent.stdout.readline())
        assert Path(f"/proc/{child}").exists(), "it goes on while its parent lives"
        parent.kill()
    wait_until(lambda: not Path(f"/proc/{child}").exists(), "it ends")


def test_a_fallback_that_no_worker_starts_is_refused() -> None:
    command = command_line("--control", "127.0.0.1:0", "--port", "0", "--fallback", str(os.getpid()))
    ended = subprocess.run(command, input="", capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 2 and "--fallback is for workers" in ended.stderr


def test_with_p4runtime_it_can_be_programmed_and_ends_cleanly(cleanup: ExitStack) -> None:
    running = start(cleanup, "--lanes", "8", serves="--p4runtime")
    controller = Controller(f"127.0.0.1:{running.control_port}", 0)
    cleanup.callback(controller.close)
    assert controller.bid(1) == "OK"
    controller.load(b'{"lanes": 8, "slots": 256}')
    assert running.end(signal.SIGTERM) == (0, "")
    with pytest.raises(grpc.RpcError):
        controller.hear()


@pytest.mark.slow
def test_a_switch_under_a_controller_serves_metrics(cleanup: ExitStack, harness: DataplaneHarness) -> None:
    running = start(cleanup, "--metrics", "127.0.0.1:0", serves="--p4runtime")
    stranger = harness.open_socket()
    stranger.sendto(Packet(job=3).to_bytes(), ("127.0.0.1", running.data_port))
    wait_until(
        lambda: running.scrape()['wiresum_dataplane_packets_total{reason="unknown"}'] == 1, "the packet is counted"
    )
    found = running.scrape()
    assert found["wiresum_dataplane_datagrams_received_total"] == 1
    assert found["wiresum_dataplane_jobs"] == 0
    assert "process_open_fds" in found
    assert running.end(signal.SIGTERM) == (0, "")


@pytest.mark.slow
def test_without_the_controller_extra_it_serves_joins_and_names_what_p4runtime_needs(cleanup: ExitStack) -> None:
    missing = ["finsy", "prometheus_client", "cryptography", "rich"]
    assert start(cleanup, without=missing).end(signal.SIGTERM) == (0, "")
    for options in (["--p4runtime", "127.0.0.1:0"], ["--metrics", "127.0.0.1:0", "--control", "127.0.0.1:0"]):
        command = command_line(*options, "--port", "0", without=missing)
        refused = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert refused.returncode == 1
        assert how_to_install("controller") in refused.stderr


@pytest.mark.parametrize("serves", ["--control", "--p4runtime"])
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["0.0.0.0:0"], "--insecure"), (["127.0.0.1:0", "--tls", "no/such/folder"], "no/such/folder is no directory")],
)
def test_unsafe_options_are_refused(serves: str, arguments: list[str], complaint: str) -> None:
    refused = CliRunner().invoke(switch, [serves, *arguments, "--port", "0"])
    assert refused.exit_code == 1
    assert complaint in refused.output


def test_modes_that_exclude_each_other_are_a_usage_error() -> None:
    refused = CliRunner().invoke(switch, ["--p4runtime", "127.0.0.1:0", "--control", "127.0.0.1:0", "--port", "0"])
    assert refused.exit_code == 2
    assert "--control" in refused.output


def test_a_data_port_in_use_is_a_clear_error(cleanup: ExitStack) -> None:
    running = start(cleanup)
    refused = CliRunner().invoke(switch, ["--control", "127.0.0.1:0", "--port", str(running.data_port)])
    assert refused.exit_code == 1
    assert f"cannot bind a UDP socket to 127.0.0.1:{running.data_port}" in refused.output
    assert "another switch" in refused.output


def test_a_control_port_in_use_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = CliRunner().invoke(switch, ["--control", f"127.0.0.1:{port}", "--port", "0"])
    assert refused.exit_code == 1
    assert f"cannot listen at 127.0.0.1:{port}" in refused.output


@pytest.mark.parametrize(("bind", "says"), [("192.0.2.1", "no such address"), ("localhost", "")])
def test_an_unusable_bind_address_is_a_clear_error(bind: str, says: str) -> None:
    refused = CliRunner().invoke(switch, ["--control", "127.0.0.1:0", "--bind", bind, "--port", "0"])
    assert refused.exit_code == 1
    assert bind in refused.output
    assert says in refused.output


@pytest.mark.parametrize("control", ["", "43487", "host:", "host:port", "127.0.0.1:65536", "no host:1"])
def test_an_invalid_control_endpoint_is_a_usage_error(control: str) -> None:
    refused = CliRunner().invoke(switch, ["--control", control])
    assert refused.exit_code == 2
    assert "--control" in refused.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["xdp", "--multicast", "239.192.0.0"], "multicast needs the kernel's sockets"),
        (["dpdk:--no-pci"], "--bind"),
        (["dpdk:", "--bind", "127.0.0.1"], "no such transport: 'dpdk:'; there are udp, udp:plain"),
        (["udp:eth1"], "no such transport: 'udp:eth1'"),
        (["rdma"], "no such transport: 'rdma'"),
    ],
)
def test_a_transport_that_makes_no_sense_is_refused(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(switch, ["--control", "127.0.0.1:0", "--port", "0", "--transport", *arguments])
    assert result.exit_code in (1, 2)
    assert says in result.output


@pytest.mark.parametrize("arguments", [[], ["--threads", "2"]])
def test_an_unavailable_transport_is_a_clear_error(arguments: list[str]) -> None:
    """AF_XDP cannot be opened at the loopback interface, with or without support for it in the build."""
    result = CliRunner().invoke(switch, ["--control", "127.0.0.1:0", "--port", "0", "--transport", "xdp", *arguments])
    assert result.exit_code == 1
    assert "AF_XDP" in result.output or "wiresum_xdp" in result.output


FEW_THREADS = """
import encodings.idna, os, resource
from wiresum.switch import command

make = command.SoftwareSwitch
user = 1_900_000_000 + os.getpid()

def make_with_few_threads(**settings):
    threads = len(os.listdir("/proc/self/task"))
    if os.getuid() == 0:  # which no such limit binds
        os.setgroups([])
        os.setresuid(user, user, user)
    most = threads + 1 if os.getuid() == user else 1
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    return make(**settings)

command.SoftwareSwitch = make_with_few_threads
command.switch()
"""


def test_a_failure_to_start_a_thread_names_the_thread_and_the_limit() -> None:
    arguments = ["--control", "127.0.0.1:0", "--port", "0", "--slots", "256", "--threads", "4"]
    finished = subprocess.run(
        [sys.executable, "-c", FEW_THREADS, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert finished.returncode == 1
    assert re.search(r"^Error: .*cannot start data thread \d of 4 of the switch", finished.stderr, re.MULTILINE)
    assert "ulimit -u" in finished.stderr
    assert "Traceback" not in finished.stderr
