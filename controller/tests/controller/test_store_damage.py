"""Whatever happens to the files of the state, no switch gets a key twice, and the next job's sums are right.

Controllers with the real state, state machine and P4Runtime driver run one after the other at one software switch; in
between, a file is damaged. The join service is left out: the test makes its calls and advances the clock. Workers are
plain sockets.
"""

from __future__ import annotations

import contextlib
import shutil
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from wiresum import join
from wiresum.controller import DriverError, ledger
from wiresum.controller.backup.command import backup, restore
from wiresum.controller.jobs.cluster import Switch
from wiresum.controller.jobs.job import State, Worker
from wiresum.controller.jobs.outputs import Admit, Evict, Output, Reconcile
from wiresum.controller.p4runtime import P4RuntimeSwitch, device
from wiresum.controller.store import FILE_NAME, LIFE_FILE_NAME, Store, StoreError
from wiresum_lab.doubles.controller import JobsHarness
from wiresum_lab.doubles.p4runtime_proxy import programmed_switch
from wiresum_lab.doubles.workers import RESULT, DataplaneHarness, Job

pytestmark = pytest.mark.slow

LANES, SLOTS = 4, 16
STOPPED_FILES = (FILE_NAME, ledger.FILE_NAME, LIFE_FILE_NAME)
FILES = (*STOPPED_FILES, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm")
EMPTY_FILES = (LIFE_FILE_NAME,)
POINTS = ("before", "forming", "running", "ending", "ended")
UNHEARD_S = 60.0
"""Longer than a job lasts after all its workers are gone."""


class Site:
    """A software switch with a P4Runtime server, and the sockets of workers."""

    def __init__(self, cleanup: contextlib.ExitStack) -> None:
        self.harness = DataplaneHarness(cleanup)
        made = cleanup.enter_context(programmed_switch(slots=SLOTS, lanes_max=LANES))
        self.device, self._target = made.switch, made.target
        self.sockets = [self.harness.open_socket() for _ in range(2)]

    def driver(self, keys: bytes, election_id: int) -> P4RuntimeSwitch:
        return P4RuntimeSwitch(self._target.with_keys(keys), election_id=election_id)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with contextlib.ExitStack() as cleanup:
        yield Site(cleanup)


class Controller(JobsHarness):
    """A controller from its start until `close`."""

    def __init__(self, site: Site, folder: Path, used: set[int], *, election_id: int = 0) -> None:
        """`used`: the keys of all jobs that were ever admitted. `election_id`: replaces the one of the state. Raises
        `StoreError`."""
        self._site, self._used = site, used
        with contextlib.ExitStack() as cleanup:
            store = cleanup.enter_context(contextlib.closing(Store(folder)))
            epoch, keys = store.begin(), store.keys()
            self.store_epoch, self.past = epoch, store.load().past
            self.driver = cleanup.enter_context(contextlib.closing(site.driver(keys.identity, election_id or epoch)))
            self.driver.wait_ready()
            switch = Switch("leaf", "software", self.driver.sizes, self.driver.endpoint)
            super().__init__(switches=[switch], store=store, keys=keys)
            self._cleanup = cleanup.pop_all()

    def connect_again(self) -> P4RuntimeSwitch:
        """Takes the switch back for this controller with the highest election id, as an operator might."""
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
                except DriverError:  # the switch has not been reconciled yet
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
        """Complete rounds in every slot, and then an incomplete one."""
        entry = workers[0].job.lease.root.entry
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
    """Runs a job up to this point of its life."""
    if point == "before":
        return
    workers = controller.ask_for("first", 1 if point == "forming" else 2)
    if point == "forming":
        return
    controller.sum(workers, 1000)
    if point == "running":
        return
    controller.switch_answers = point != "ending"  # the controller dies before it knows of the eviction
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
    """Restores the earlier version of a file, or its absence."""
    (folder / name).unlink(missing_ok=True)
    if (image / name).exists():
        shutil.copy2(image / name, folder / name)


def run_a_job(controller: Controller, name: str, value: int) -> None:
    """Runs a job that gets all slots and checks its sums; afterwards all slots are free."""
    workers = controller.ask_for(name)
    assert workers[0].job.state is State.RUNNING
    controller.sum(workers, value)
    for worker in workers:
        controller.leave(worker)
    assert controller.slots_free == SLOTS, "no slot is lost"


class Takeover:
    """A first controller runs until it dies or stops, its files are damaged, and another controller follows."""

    def __init__(self, site: Site, root: Path) -> None:
        self._site, self.folder, self.before = site, root / "state", root / "before"
        self.used: set[int] = set()
        shutil.rmtree(root, ignore_errors=True)
        with contextlib.closing(Store(self.folder)) as store:
            store.begin()
            store.show_life()
        shutil.copytree(self.folder, self.before)

    def run_first(self, point: str, *, killed: bool) -> None:
        first = Controller(self._site, self.folder, self.used)
        run_until(first, point)
        image = self.folder.with_name("image")
        if killed:
            shutil.copytree(self.folder, image)
        first.close()
        if killed:
            replace(self.folder, image)

    def check_second(self) -> None:
        """The next job gets the slots of the first one, and exact sums."""
        try:
            after = Controller(self._site, self.folder, self.used)
        except StoreError as error:
            assert "move it away" in str(error), "the error says what to do"
            for name in (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"):
                (self.folder / name).unlink(missing_ok=True)
            after = Controller(self._site, self.folder, self.used)
        with contextlib.closing(after):
            if after.jobs.all():
                after.wait(UNHEARD_S)
            assert after.jobs.all() == [], "stored jobs end if their workers do not come back"
            run_a_job(after, "second", 7)


@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize(
    "point",
    [pytest.param(each, marks=pytest.mark.slow if each == "running" else pytest.mark.nightly) for each in POINTS],
)
# R7.11
def test_a_damaged_file_never_repeats_a_key_or_leaks_a_sum(site: Site, tmp_path: Path, point: str, how: str) -> None:
    there = FILES if how == "killed" else STOPPED_FILES
    for name in there:
        for fault in (*FAULTS, "restored") if name not in EMPTY_FILES else ("removed",):
            takeover = Takeover(site, tmp_path / "takeover")
            takeover.run_first(point, killed=how == "killed")
            assert {path.name for path in takeover.folder.iterdir()} == set(there)
            if fault == "restored":
                put_back(takeover.folder, takeover.before, name)
            else:
                FAULTS[fault](takeover.folder / name)
            takeover.check_second()


@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("point", POINTS)
def test_an_old_copy_of_the_state_never_repeats_a_key_or_leaks_a_sum(
    site: Site, tmp_path: Path, point: str, how: str
) -> None:
    takeover = Takeover(site, tmp_path / "takeover")
    takeover.run_first(point, killed=how == "killed")
    replace(takeover.folder, takeover.before)
    takeover.check_second()


def test_controllers_with_copies_of_one_state_take_turns_without_repeating_a_key(site: Site, tmp_path: Path) -> None:
    used: set[int] = set()
    folders = [tmp_path / "state", tmp_path / "copy"]
    with contextlib.closing(Controller(site, folders[0], used)) as first:
        run_a_job(first, "before-the-copy", 1000)
    shutil.copytree(*folders)
    for turn in range(4):
        with contextlib.closing(Controller(site, folders[turn % 2], used)) as controller:
            assert bool(controller.jobs.past) == (turn > 0), "it reports an old state"
            for value in range(3):
                run_a_job(controller, f"{turn}-{value}", 10 * turn + value)


def test_a_controller_that_regains_the_switch_skips_the_keys_of_the_other_one(site: Site, tmp_path: Path) -> None:
    """Both have copies of one state and are alive; the switch obeys the one with the higher election id."""
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


def test_a_job_that_ended_after_the_state_was_copied_ends_at_once_with_a_reason(site: Site, tmp_path: Path) -> None:
    takeover = Takeover(site, tmp_path / "takeover")
    first = Controller(site, takeover.folder, takeover.used)
    run_until(first, "running")
    shutil.copytree(takeover.folder, tmp_path / "running")
    for worker in list(first.jobs.all()[0].members.workers.values()):
        first.leave(worker)
    first.close()
    replace(takeover.folder, tmp_path / "running")
    with contextlib.closing(Controller(site, takeover.folder, takeover.used)) as after:
        (ended,) = after.jobs.history.page(None).jobs
        assert ended.reason == "leaf does not hold it: it ended after the controller's state was written"
        after.wait(6)  # the time for workers to come back
        assert after.slots_free == SLOTS


def test_a_job_known_to_state_and_switch_continues_if_other_files_are_lost(site: Site, tmp_path: Path) -> None:
    takeover = Takeover(site, tmp_path / "takeover")
    takeover.run_first("running", killed=True)
    (takeover.folder / f"{FILE_NAME}-shm").unlink()
    (takeover.folder / LIFE_FILE_NAME).unlink()
    with contextlib.closing(Controller(site, takeover.folder, takeover.used)) as after:
        assert [(job.name, job.state) for job in after.jobs.all()] == [("first", State.RUNNING)]
        assert after.jobs.past == ""


CONFIGURATION = """
[controller]
state = "{state}"
[[switch]]
name = "leaf"
kind = "software"
p4runtime = "127.0.0.1:9559"
address = "127.0.0.1"
"""


class Backup:
    """Of a state, by the commands."""

    def __init__(self, root: Path) -> None:
        self.folder, self._archive, self._config = root / "state", root / "backup.tar", root / "cluster.toml"
        self._config.write_text(CONFIGURATION.format(state=self.folder))

    def make(self) -> None:
        made = CliRunner().invoke(backup, ["--config", str(self._config), str(self._archive)])
        assert made.exit_code == 0, made.output

    def restore(self) -> None:
        arguments = ["--config", str(self._config), "--force", str(self._archive)]
        restored = CliRunner().invoke(restore, arguments)
        assert restored.exit_code == 0, restored.output


@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("point", POINTS)
def test_a_restored_backup_never_repeats_a_key_or_acts_on_a_job_that_is_over(
    site: Site, tmp_path: Path, point: str, how: str
) -> None:
    """It is made while a controller serves, which others follow."""
    saved, used, epochs = Backup(tmp_path), set[int](), []
    with contextlib.closing(Controller(site, saved.folder, used)) as first:
        epochs.append(first.store_epoch)
        run_until(first, point)
        saved.make()
    with contextlib.closing(Controller(site, saved.folder, used)) as then:
        epochs.append(then.store_epoch)
        for job in then.jobs.all():
            if job.state is not State.ENDING:
                then.jobs.end(job.name, "it is over", then.now)
        then.wait(UNHEARD_S)
        for value in range(3):
            run_a_job(then, f"later-{value}", 1000 + value)
    for value in range(2):
        with contextlib.closing(Controller(site, saved.folder, used)) as another:
            epochs.append(another.store_epoch)
            run_a_job(another, f"of-another-{value}", 2000 + value)
    image = tmp_path / "image"
    with contextlib.closing(Controller(site, saved.folder, used)) as last:
        epochs.append(last.store_epoch)
        last.sum(last.ask_for("unknown-to-the-backup"), 3000)
        if how == "killed":
            shutil.copytree(saved.folder, image)
    if how == "killed":
        replace(saved.folder, image)
    for lost in (True, False):  # the second time over the state that the first one left
        if lost:
            shutil.rmtree(saved.folder)
        saved.restore()
        with contextlib.closing(Controller(site, saved.folder, used)) as after:
            assert after.store_epoch > max(epochs), "switches obey it rather than any other that is still connected"
            epochs.append(after.store_epoch)
            assert "is not what was written last" in after.past, "it says that its state is an old one"
            ended = {"before": [], "forming": [], "running": ["first"], "ending": ["first"], "ended": ["first"]}[point]
            assert [job.name for job in after.jobs.history.page(None).jobs] == ended
            assert not [job for job in after.jobs.all() if job.state is not State.ENDING], "none of its jobs runs"
            after.wait(UNHEARD_S)
            assert after.slots_free == SLOTS
            run_a_job(after, "next", 7)
            run_a_job(after, "after-it", 8)
    with contextlib.closing(Controller(site, saved.folder, used)) as quiet:
        assert quiet.past == "", "its next start is an ordinary one"


def test_a_job_that_a_restored_backup_and_the_switch_know_goes_on(site: Site, tmp_path: Path) -> None:
    saved, used = Backup(tmp_path), set[int]()
    with contextlib.closing(Controller(site, saved.folder, used)) as first:
        run_a_job(first, "before", 1000)
        workers = first.ask_for("first")
        first.sum(workers, 7)
        saved.make()
    shutil.rmtree(saved.folder)  # its disk is lost
    saved.restore()
    with contextlib.closing(Controller(site, saved.folder, used)) as after:
        (job,) = after.jobs.all()
        assert (job.name, job.state, after.jobs.history.page(None).jobs[0].name) == ("first", State.RUNNING, "before")
        assert job.lease.root.entry is not None
        made = Job(site.device, job.lease.root.entry, site.sockets)
        made.send(made.packet(1, 4, (35,) * LANES))  # the first worker has sent its part before
        for worker in range(2):
            assert made.receive(worker).words == (42,) * LANES, "what the switch had summed is still there"
        for left in list(job.members.workers.values()):
            after.leave(left)
        after.wait(UNHEARD_S)
        run_a_job(after, "next", 9)


def test_keys_that_another_controller_with_the_same_random_bits_gave_are_not_given_again(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "secrets", types.SimpleNamespace(randbits=lambda _bits: 7))
    used: set[int] = set()
    folders = [tmp_path / "state", tmp_path / "copy"]
    with contextlib.closing(Controller(site, folders[0], used)) as first:
        run_a_job(first, "before-the-copy", 1000)
    shutil.copytree(*folders)
    for folder in folders:
        with contextlib.closing(Controller(site, folder, used)) as controller:
            run_a_job(controller, "after-the-copy", 2000)
