"""When a standby takes over: once the switches are vacant and nobody shows life, or at once after an orderly end."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum.controller import config as configuration
from wiresum.controller import controlling
from wiresum.controller.controlling import VACANT_S
from wiresum.controller.p4runtime import P4RuntimeSwitch
from wiresum.controller.store import FILE_NAME, Store
from wiresum.switch.p4runtime import P4RuntimeServer
from wiresum.switch.software_switch import SoftwareSwitch
from wiresum_lab.doubles.controller import Client
from wiresum_lab.processes import PATIENCE_S, Program, unused_port, wait_until, wiresum

CONFIG = """\
[controller]
listen = "127.0.0.1:{port}"
state = "state"

[[switch]]
name = "leaf"
kind = "software"
p4runtime = "{p4runtime}"
address = "127.0.0.1"
port = {data}
lanes = 16
slots = 64
"""
SOON_S = 2.0
"""It connects, and looks every half second."""


class Standby:
    """A standby in a thread of this process, of a switch that is there, and a state."""

    def __init__(self, folder: Path, cleanup: contextlib.ExitStack) -> None:
        switch = SoftwareSwitch(port=0, threads=1, slots=64, lanes_max=16)
        cleanup.callback(switch.close)
        server = P4RuntimeServer(switch, 0)
        at = f"127.0.0.1:{server.start('127.0.0.1:0')}"
        cleanup.callback(server.stop)
        self.config_path = folder / "cluster.toml"
        self.port = unused_port()
        self.config_path.write_text(CONFIG.format(port=self.port, p4runtime=at, data=switch.endpoint.port))
        self._config = configuration.load(self.config_path)
        self.targets = controlling.targets(self._config)
        assert self._config.state is not None
        self.store = Store(self._config.state)
        cleanup.callback(self.store.close)
        self._stop = threading.Event()
        self._took_over_at = 0.0
        self._thread = threading.Thread(target=self._stand_by)
        cleanup.callback(self.stop)

    def start(self) -> None:
        self._thread.start()

    def _stand_by(self) -> None:
        if controlling.stand_by(self._config, self.targets, self.store, self._stop):
            self._took_over_at = time.monotonic()

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def takes_over_after(self, since: float) -> float:
        wait_until(lambda: not self.waits, "it takes over")
        assert self._took_over_at
        return self._took_over_at - since

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(PATIENCE_S)


@pytest.fixture
def standby(tmp_path: Path) -> Iterator[Standby]:
    with contextlib.ExitStack() as cleanup:
        yield Standby(tmp_path, cleanup)


def test_where_nobody_serves_it_takes_over_at_once(standby: Standby) -> None:
    began_at = time.monotonic()
    standby.start()
    assert standby.takes_over_after(began_at) < VACANT_S


def test_after_an_orderly_end_it_takes_over_at_once(standby: Standby) -> None:
    standby.store.begin()
    standby.start()
    time.sleep(SOON_S)
    assert standby.waits, "it has been shown life, a moment ago"
    began_at = time.monotonic()
    standby.store.end()
    assert standby.takes_over_after(began_at) < VACANT_S / 2


@pytest.mark.slow
def test_a_controller_that_is_cut_off_from_its_switches_and_shows_life_keeps_its_place(standby: Standby) -> None:
    standby.store.begin()
    standby.start()
    end_at = time.monotonic() + 3 * VACANT_S
    while time.monotonic() < end_at:
        standby.store.show_life()
        assert standby.waits
        time.sleep(0.5)
    shown_at = time.monotonic()
    assert standby.takes_over_after(shown_at) > VACANT_S - 1.0


@pytest.mark.slow
def test_a_controller_that_programs_the_switches_keeps_its_place_without_life_for_seconds(standby: Standby) -> None:
    standby.store.begin()
    (target,) = standby.targets
    active = P4RuntimeSwitch(target, election_id=5)
    try:
        active.wait_ready()
        standby.start()
        time.sleep(VACANT_S + SOON_S)
        assert standby.waits
    finally:
        left_at = time.monotonic()
        active.close()
    assert standby.takes_over_after(left_at) > VACANT_S - 1.0, "the switches must be vacant for that long, too"


@pytest.mark.slow
def test_a_standby_that_cannot_use_the_state_tries_again(standby: Standby, tmp_path: Path) -> None:
    """The lock has the effect of a full disk: no transaction can begin."""
    database = sqlite3.connect(tmp_path / "state" / FILE_NAME, isolation_level=None)
    with (
        contextlib.closing(database),
        Program(wiresum("controller", "--config", str(standby.config_path), "--standby"), tmp_path / "log") as program,
    ):
        program.await_text("standing by: leaf")
        database.execute("BEGIN IMMEDIATE")
        program.await_text("cannot use the state in .*Look at its disk. This controller stands by, and tries again")
        assert program.exit_code is None
        database.execute("ROLLBACK")
        program.await_text("^ready: control")
        client = Client(standby.port)
        with contextlib.closing(client):
            assert client.report().service.role == "active"
