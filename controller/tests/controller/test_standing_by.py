"""When a standby takes over: once the switches are vacant and nobody shows life, or at once after an orderly end."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from wiresum.controller import config as configuration
from wiresum.controller import controlling
from wiresum.controller.command import STORE_RETRY_S, take_turns
from wiresum.controller.config import Config
from wiresum.controller.controlling import FROZEN_S, LOOK_S, VACANT_S, Watch
from wiresum.controller.p4runtime import Target
from wiresum.controller.store import Store
from wiresum.switch.p4runtime import arbitration
from wiresum_lab.doubles.controller import Client
from wiresum_lab.doubles.p4runtime_controller import Controller
from wiresum_lab.doubles.p4runtime_proxy import programmed_switch
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import unused_port, wait_until

# The rules, in virtual time.


@dataclass
class Switch:
    """As a standby sees one."""

    name: str = "leaf"
    trouble: str = ""
    outranked: bool = False


VACANT, PROGRAMMED, OUT_OF_REACH = (
    Switch(),
    Switch(trouble="another one programs it", outranked=True),
    Switch(trouble="no"),
)


class Standby:
    def __init__(self, shown: float | None) -> None:
        self.now, self.shown = 100.0, shown
        self.watch = Watch(lambda: self.shown, lambda: self.now)

    def looks(self, seconds: float, *switches: Switch, alive: bool = False) -> str:
        """At the intervals of a standby, for so long; returns why it takes over, and empty if it does not. `alive`: the
        controller that serves shows life."""
        for _ in range(round(seconds / LOOK_S)):
            self.now += LOOK_S
            if alive:
                self.shown = self.now
            if why := self.watch.look(switches):
                return why
        return ""


def test_where_nobody_serves_it_takes_over_at_once() -> None:
    assert Standby(None).looks(LOOK_S, VACANT) == "no controller programs leaf, and none serves"
    assert Standby(None).looks(60.0, OUT_OF_REACH) == "", "it could not program any switch"


def test_after_an_orderly_end_it_takes_over_at_once() -> None:
    standby = Standby(1.0)
    assert standby.looks(VACANT_S, VACANT) == "", "it has been shown life, a moment ago"
    standby.shown = None
    assert standby.looks(LOOK_S, VACANT).endswith("none serves")


def test_a_controller_that_is_cut_off_from_its_switches_and_shows_life_keeps_its_place() -> None:
    standby = Standby(1.0)
    assert standby.looks(60.0, VACANT, alive=True) == ""
    assert standby.watch.silent_s() == 0.0
    assert standby.looks(VACANT_S, VACANT) == ""
    assert standby.watch.silent_s() == VACANT_S
    assert standby.looks(LOOK_S, VACANT) == "no controller has programmed leaf or shown life for 3 s"


def test_a_controller_that_programs_the_switches_keeps_its_place_without_life_for_seconds() -> None:
    standby = Standby(1.0)
    assert standby.looks(VACANT_S + 1.0, VACANT, PROGRAMMED) == ""
    assert standby.looks(VACANT_S, VACANT, VACANT) == "", "the switches must be vacant for that long, too"
    assert "has programmed leaf, leaf or shown life" in standby.looks(LOOK_S, VACANT, VACANT)


def test_a_controller_that_is_frozen_loses_its_place() -> None:
    standby = Standby(1.0)
    assert standby.looks(FROZEN_S, PROGRAMMED) == ""
    assert standby.looks(LOOK_S, PROGRAMMED) == "the controller that serves has shown no life for 10 s"


def test_a_standby_that_was_frozen_itself_counts_anew() -> None:
    standby = Standby(1.0)
    standby.now += 60.0
    assert standby.looks(VACANT_S, VACANT) == ""
    assert standby.looks(2 * LOOK_S, VACANT) != ""


# A switch that is there, and a state.


class Looks(threading.Event):
    """As the event that ends a controller. Whoever waits for it takes no time to speak of."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        self.meanwhile()
        return super().wait(0.01)


class Place(NamedTuple):
    config: Config
    targets: list[Target]
    store: Store
    stop: Looks

    def runs(self, announce: Callable[[str], None]) -> None:
        take_turns(self.config, self.targets, self.store, self.stop, announce, lambda: None, standby=True)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with contextlib.ExitStack() as cleanup:
        made = cleanup.enter_context(programmed_switch(slots=64, lanes_max=16))
        path = tmp_path / "cluster.toml"
        path.write_text(made.configuration(unused_port()))
        config = configuration.load(path)
        assert config.state is not None
        store = cleanup.enter_context(contextlib.closing(Store(config.state, busy_s_max=0.0)))
        yield Place(config, controlling.targets(config), store, Looks())


def test_a_foreign_program_that_holds_a_switch_is_trouble_with_that_switch_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service goes on, says who holds the switch, and uses it again by itself."""
    monkeypatch.setattr(arbitration, "ELECTION_ID_MAX", (1 << 128) - 1)  # as another switch would do
    ready = threading.Event()
    arguments = (place.config, place.targets, place.store, place.stop, lambda _text: ready.set())
    serving = threading.Thread(target=controlling.serve, args=arguments)
    serving.start()
    try:
        assert ready.wait(PATIENCE_S)
        with contextlib.closing(Client(place.config.listen[1])) as client:

            def state() -> str:
                (switch,) = client.report().switches
                return f"{switch.state}: {switch.trouble}"

            client.join(job_name="before", slots=16)
            foreign = Controller(place.targets[0].p4runtime, 0)
            assert foreign.bid((1 << 128) - 1) == "OK"
            wait_until(lambda: "unreachable" in state() and "another program holds" in state(), "operators see it")
            looks = len(place.stop.waits)
            wait_until(lambda: len(place.stop.waits) > looks + 3, "no other controller has taken over")
            foreign.close()
            wait_until(lambda: state() == "ready: ", "the switch is used again")
            client.join(job_name="after", slots=16)
    finally:
        place.stop.set()
        serving.join(PATIENCE_S)
    assert not serving.is_alive()


def test_a_standby_that_cannot_use_the_state_tries_again(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The lock has the effect of a full disk: no transaction can begin."""
    said: list[str] = []

    def announce(text: str) -> None:
        said.append(text)
        if text.startswith("ready: control"):
            place.stop.set()

    def mend() -> None:
        if place.stop.waits[-1] == STORE_RETRY_S:
            database.execute("ROLLBACK")

    place.stop.meanwhile = mend
    with contextlib.closing(sqlite3.connect(place.store.path, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        place.runs(announce)
    assert [text.partition(":")[0] for text in said] == ["standing by", "standing by", "ready"]
    assert place.stop.waits.count(STORE_RETRY_S) == 1
    assert re.search(
        "cannot use the state in .*Look at its disk. This controller stands by, and tries again", caplog.text
    )


def test_a_controller_that_is_deposed_stands_by_and_takes_over_again(place: Place) -> None:
    said: list[str] = []

    def announce(text: str) -> None:
        said.append(text.partition(":")[0])
        if said.count("ready") > 1:
            place.stop.set()
        elif said[-1] == "ready":
            with contextlib.closing(Store(place.store.path.parent)) as other:
                other.begin()
                other.end()

    place.runs(announce)
    assert said == ["standing by", "ready", "standing by", "ready"]
