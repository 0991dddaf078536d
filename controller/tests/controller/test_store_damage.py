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
from wiresum.controller.testing import JobsBench
from wiresum.switch import SoftwareSwitch
from wiresum.switch.p4runtime import P4RuntimeServer
from wiresum.switch.testing import RESULT, Bench, Job

LANES, SLOTS = 4, 16
FILES = (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm", ledger.FILE_NAME, LIFE_FILE_NAME)
POINTS = ("before", "forming", "running", "ending", "ended")
UNHEARD_S = 60.0
"""Longer than a job lives whose workers do not come back."""


class Site:
    """A software switch with a P4Runtime server, and workers."""

    def __init__(self, cleanup: contextlib.ExitStack) -> None:
        self.bench = Bench(cleanup)
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
        self.sockets = [self.bench.open_socket() for _ in range(2)]

    def driver(self, keys: bytes, election_id: int) -> P4RuntimeSwitch:
        return P4RuntimeSwitch(self._target.with_keys(keys), election_id=election_id)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with contextlib.ExitStack() as cleanup:
        yield Site(cleanup)


class Controller(JobsBench):
    """From its beginning to `close`."""

    def __init__(self, site: Site, folder: Path, used: set[int]) -> None:
        """`used`: the keys of all jobs that were ever admitted. Raises `StoreError`."""
        self._site, self._used = site, used
        with contextlib.ExitStack() as cleanup:
            store = cleanup.enter_context(contextlib.closing(Store(folder)))
            epoch, keys = store.begin(), store.keys()
            self.driver = cleanup.enter_context(contextlib.closing(site.driver(keys.identity, epoch)))
            self.driver.wait_ready()
            switch = Switch("leaf", "software", self.driver.sizes, self.driver.endpoint)
            super().__init__(switches=[switch], store=store, keys=keys)
            self._cleanup = cleanup.pop_all()

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
    "first byte flipped": lambda path: flip(path, 0),
    "byte flipped early": lambda path: flip(path, 0.2),
    "byte flipped in the middle": lambda path: flip(path, 0.5),
    "byte flipped late": lambda path: flip(path, 0.8),
    "last byte flipped": lambda path: flip(path, 1),
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
            workers = after.ask_for("second")
            assert workers[0].job.state is State.RUNNING
            after.sum(workers, 7)
            for worker in workers:
                after.leave(worker)
            assert after.slots_free == SLOTS, "no slot is lost"


@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("point", POINTS)
def test_a_file_that_is_damaged_gives_the_next_job_no_key_twice_and_no_sums_of_another(
    site: Site, tmp_path: Path, point: str, how: str
) -> None:
    faults = [(name, fault) for name in FILES for fault in (*FAULTS, "restored")]
    for name, fault in faults:
        story = Story(site, tmp_path / "story")
        story.live_until(point, killed=how == "killed")
        path = story.folder / name
        if fault == "restored":
            put_back(story.folder, story.before, name)
        elif path.exists() and (path.stat().st_size or fault == "removed"):
            FAULTS[fault](path)
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
