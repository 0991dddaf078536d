"""Whatever becomes of the files of the state, no key comes twice to a switch, and the sums of the next job are right.

Controllers begin with the real state, state machine and P4Runtime driver, one after the other, at one software switch;
between two of them something happens to a file. What is not there is the join service: its calls are made by hand, with
a clock that is turned by hand. Workers are plain sockets.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wiresum import join
from wiresum.controller import DriverError, ledger
from wiresum.controller.jobs.cluster import Switch
from wiresum.controller.jobs.job import State, Worker
from wiresum.controller.jobs.outputs import Admit, Evict, Output, Reconcile
from wiresum.controller.p4runtime import P4RuntimeSwitch, Target, device_config
from wiresum.controller.store import FILE_NAME, LIFE_FILE_NAME, Store, StoreError
from wiresum.switch import SoftwareSwitch
from wiresum.switch.p4runtime import P4RuntimeServer
from wiresum_lab.doubles.controller import JobsHarness
from wiresum_lab.doubles.workers import RESULT, DataplaneHarness, Job

LANES, SLOTS = 4, 16
STOPPED_FILES = (FILE_NAME, ledger.FILE_NAME, LIFE_FILE_NAME)
FILES = (*STOPPED_FILES, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm")
EMPTY_FILES = (LIFE_FILE_NAME,)
POINTS = ("before", "forming", "running", "ending", "ended")
UNHEARD_S = 60.0
"""Longer than a job lives whose workers do not come back."""


class Site:
    """A software switch with a P4Runtime server, and workers."""

    def __init__(self, cleanup: contextlib.ExitStack) -> None:
        self.harness = DataplaneHarness(cleanup)
        self.device = SoftwareSwitch(port=0, threads=1, slots=SLOTS, lanes_max=LANES)
        cleanup.callback(self.device.close)
        server = P4RuntimeServer(self.device, 0)
        cleanup.callback(server.stop)
        self._target = Target(
            name="leaf",
            kind="software",
            p4runtime=f"127.0.0.1:{server.start('127.0.0.1:0')}",
            device=0,
            pipeline=device_config.software(lanes=LANES, slots=SLOTS),
            address=self.device.endpoint.address,
            port=self.device.endpoint.port,
        )
        self.sockets = [self.harness.open_socket() for _ in range(2)]

    def driver(self, keys: bytes, election_id: int) -> P4RuntimeSwitch:
        return P4RuntimeSwitch(self._target.with_keys(keys), election_id=election_id)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with contextlib.ExitStack() as cleanup:
        yield Site(cleanup)


class Controller(JobsHarness):
    """From its beginning to `close`."""

    def __init__(self, site: Site, folder: Path, used: set[int], *, election_id: int = 0) -> None:
        """`used`: the keys of all jobs that were ever admitted. `election_id`: if not the state's. Raises
        `StoreError`."""
        self._site, self._used = site, used
        with contextlib.ExitStack() as cleanup:
            store = cleanup.enter_context(contextlib.closing(Store(folder)))
            epoch, keys = store.begin(), store.keys()
            self.driver = cleanup.enter_context(contextlib.closing(site.driver(keys.identity, election_id or epoch)))
            self.driver.wait_ready()
            switch = Switch("leaf", "software", self.driver.sizes, self.driver.endpoint)
            super().__init__(switches=[switch], store=store, keys=keys)
            self._cleanup = cleanup.pop_all()

    def connect_again(self) -> P4RuntimeSwitch:
        """The switch obeys this controller again, as after an operator's word."""
        self.driver.close()
        assert self.store is not None
        driver = self._cleanup.enter_context(contextlib.closing(self._site.driver(self.store.keys().identity, 1 << 62)))
        driver.wait_ready()
        return driver

    def answer(self, output: Output) -> None:
        match output:
            case Admit(name, entry):
                assert entry.key not in self._used, "no key comes twice"
                self._used.add(entry.key)
                self.driver.admit(entry)
                self.jobs.admitted(name, entry.job, self.now)
            case Evict(name, number):
                try:
                    self.driver.evict(number)
                except DriverError:  # it has not been reconciled yet
                    self.jobs.evict_failed(name, number, self.now)
                else:
                    self.jobs.evicted(name, number, self.now)
            case Reconcile(_, entries):
                self.jobs.reconciled(output, self.driver.reconcile(entries), self.now)
            case _:
                super().answer(output)

    def ask_for(self, name: str, ranks: int = 2) -> list[Worker]:
        return [
            self.ask(
                job_name=name,
                rank=rank,
                world_size=2,
                endpoint=join.Endpoint(address=address, port=port),
                lanes_max=LANES,
                threads_max=1,
                slots=SLOTS,
            )
            for rank, (address, port) in enumerate(made.getsockname() for made in self._site.sockets[:ranks])
        ]

    def sum(self, workers: list[Worker], value: int) -> None:
        """Rounds of every slot, and then one that is not complete."""
        entry = workers[0].job.root.entry
        assert entry is not None
        made = Job(self._site.device, entry, self._site.sockets)
        for number in (1, 2, 3):
            for slot in range(SLOTS):
                for worker in range(2):
                    made.send(made.packet(worker, number, ((worker + 1) * value,) * LANES, slot=slot))
                for worker in range(2):
                    result = made.receive(worker)
                    assert (result.kind, result.words) == (RESULT, (3 * value,) * LANES), "the sum is this job's"
        made.send(made.packet(0, 4, (value,) * LANES))

    def close(self) -> None:
        self._cleanup.close()


def run_until(controller: Controller, point: str) -> None:
    """Of a job's life."""
    if point == "before":
        return
    workers = controller.ask_for("first", 1 if point == "forming" else 2)
    if point == "forming":
        return
    controller.sum(workers, 1000)
    if point == "running":
        return
    controller.switch_answers = point != "ending"  # it dies before it has heard that the switch has forgotten the job
    for worker in workers:
        controller.leave(worker)


def cut(path: Path, rest: float) -> None:
    path.write_bytes(path.read_bytes()[: int(rest * path.stat().st_size)])


def flip(path: Path, place: float) -> None:
    contents = bytearray(path.read_bytes())
    contents[int(place * (len(contents) - 1))] ^= 0x10
    path.write_bytes(contents)


FAULTS: dict[str, Callable[[Path], None]] = {
    "cut to nothing": lambda path: cut(path, 0),
    "cut in half": lambda path: cut(path, 0.5),
    "byte flipped early": lambda path: flip(path, 0.001),
    "byte flipped in the middle": lambda path: flip(path, 0.5),
    "byte flipped late": lambda path: flip(path, 0.9),
    "removed": lambda path: path.unlink(),
}


def replace(folder: Path, image: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(image, folder)


def put_back(folder: Path, image: Path, name: str) -> None:
    """A file as it was before; if there was none, there is none."""
    (folder / name).unlink(missing_ok=True)
    if (image / name).exists():
        shutil.copy2(image / name, folder / name)


def run_a_job(controller: Controller, name: str, value: int) -> None:
    """It has all slots, its sums are its own, and then it has none."""
    workers = controller.ask_for(name)
    assert workers[0].job.state is State.RUNNING
    controller.sum(workers, value)
    for worker in workers:
        controller.leave(worker)
    assert controller.slots_free == SLOTS, "no slot is lost"


class Story:
    """A controller that stops, one that dies or stops at a point of a job's life, a fault, and another controller."""

    def __init__(self, site: Site, root: Path) -> None:
        self._site, self.folder, self.before = site, root / "state", root / "before"
        self.used: set[int] = set()
        shutil.rmtree(root, ignore_errors=True)
        with contextlib.closing(Store(self.folder)) as store:
            store.begin()
            store.show_life()
        shutil.copytree(self.folder, self.before)

    def live_until(self, point: str, *, killed: bool) -> None:
        first = Controller(self._site, self.folder, self.used)
        run_until(first, point)
        image = self.folder.with_name("image")
        if killed:
            shutil.copytree(self.folder, image)
        first.close()
        if killed:
            replace(self.folder, image)

    def go_on(self) -> None:
        """The next job has the slots that the first one had, and its sums are its own."""
        try:
            after = Controller(self._site, self.folder, self.used)
        except StoreError as error:
            assert "move it away" in str(error), "there is a way out"
            for name in (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"):
                (self.folder / name).unlink(missing_ok=True)
            after = Controller(self._site, self.folder, self.used)
        with contextlib.closing(after):
            if after.jobs.all():
                after.wait(UNHEARD_S)
            assert after.jobs.all() == [], "what the state knows of ends, if its workers do not come back"
            run_a_job(after, "second", 7)


@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("point", POINTS)
def test_a_file_that_is_damaged_gives_the_next_job_no_key_twice_and_no_sums_of_another(
    site: Site, tmp_path: Path, point: str, how: str
) -> None:
    there = FILES if how == "killed" else STOPPED_FILES
    for name in there:
        for fault in (*FAULTS, "restored") if name not in EMPTY_FILES else ("removed",):
            story = Story(site, tmp_path / "story")
            story.live_until(point, killed=how == "killed")
            assert {path.name for path in story.folder.iterdir()} == set(there)
            if fault == "restored":
                put_back(story.folder, story.before, name)
            else:
                FAULTS[fault](story.folder / name)
            story.go_on()


@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("point", POINTS)
def test_an_old_copy_of_the_state_gives_the_next_job_no_key_twice_and_no_sums_of_another(
    site: Site, tmp_path: Path, point: str, how: str
) -> None:
    story = Story(site, tmp_path / "story")
    story.live_until(point, killed=how == "killed")
    replace(story.folder, story.before)
    story.go_on()


def test_controllers_with_copies_of_one_state_give_no_key_twice_whoever_comes_to_the_switch(
    site: Site, tmp_path: Path
) -> None:
    used: set[int] = set()
    folders = [tmp_path / "state", tmp_path / "copy"]
    with contextlib.closing(Controller(site, folders[0], used)) as first:
        run_a_job(first, "before-the-copy", 1000)
    shutil.copytree(*folders)
    for turn in range(4):
        with contextlib.closing(Controller(site, folders[turn % 2], used)) as controller:
            assert bool(controller.jobs.past) == (turn > 0), "it says that it is of the past"
            for value in range(3):
                run_a_job(controller, f"{turn}-{value}", 10 * turn + value)


def test_a_controller_that_another_one_took_over_from_meanwhile_goes_on_behind_its_keys(
    site: Site, tmp_path: Path
) -> None:
    """Both are alive, and the switch obeys now one and now the other, which outbids it."""
    used: set[int] = set()
    folders = [tmp_path / "state", tmp_path / "copy"]
    with contextlib.closing(Controller(site, folders[0], used)) as one:
        run_a_job(one, "before-the-copy", 1000)
        shutil.copytree(*folders)
        with contextlib.closing(Controller(site, folders[1], used, election_id=1 << 61)) as other:
            run_a_job(other, "of-the-other", 2000)
        one.driver = one.connect_again()
        one.change("leaf", "it was away")
        one.change("leaf", "")
        run_a_job(one, "afterwards", 7)
        assert "has been given keys that the state does not know of" in one.jobs.past


def test_a_job_that_ended_since_the_state_was_written_ends_at_once_and_says_why(site: Site, tmp_path: Path) -> None:
    story = Story(site, tmp_path / "story")
    first = Controller(site, story.folder, story.used)
    run_until(first, "running")
    shutil.copytree(story.folder, tmp_path / "running")
    for worker in list(first.jobs.all()[0].workers.values()):
        first.leave(worker)
    first.close()
    replace(story.folder, tmp_path / "running")
    with contextlib.closing(Controller(site, story.folder, story.used)) as after:
        (ended,) = after.jobs.history.find(None, "", 0)
        assert ended.reason == "leaf does not hold it: it ended after the controller's state was written"
        after.wait(6)  # for workers that may come back
        assert after.slots_free == SLOTS


def test_a_job_that_the_state_and_the_switch_know_goes_on_whatever_else_was_lost(site: Site, tmp_path: Path) -> None:
    story = Story(site, tmp_path / "story")
    story.live_until("running", killed=True)
    (story.folder / f"{FILE_NAME}-shm").unlink()
    (story.folder / LIFE_FILE_NAME).unlink()
    with contextlib.closing(Controller(site, story.folder, story.used)) as after:
        assert [(job.name, job.state) for job in after.jobs.all()] == [("first", State.RUNNING)]
        assert after.jobs.past == ""
