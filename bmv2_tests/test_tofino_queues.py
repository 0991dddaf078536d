"""A flood of questions loses no sum on Tofino 1, and a flood of sums stops no answers: on the way to the second pass
each has a queue of its own, with a weight.

The interpreter has no time, so the port back to the ingress is modelled here: packets of its queues pass one by one,
and what comes to a full queue is lost.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable, Mapping

import pytest

from bmv2_tests.tna_interpreter.switch import RECIRCULATION_PORT, Copy, Switch
from bmv2_tests.tofino_network import MAIN, TofinoNetwork
from wiresum.conformance.scenarios import Job, Member
from wiresum.join.constants import PARENT, Header, Kind

SUMS, ANSWERS = 1, 0
"""The queues of the recirculation port."""
WEIGHTS = {SUMS: 7, ANSWERS: 1}
"""As docs/tofino_deploy.md gives them."""
ROOM = 4
"""Packets in a queue."""
VICTIM = Job(number=1, key=0xA0000001, workers=2, threads=1, lanes=64, slot_base=0, slots=4)
FLOODER = Job(number=2, key=0xA0000002, workers=1, threads=1, lanes=64, slot_base=4, slots=16)
BELOW = Job(number=3, key=0xA0000003, workers=2, threads=1, lanes=64, slot_base=20, slots=4, parent=5)
DATA, EMPTY, RESULT, META, QUESTION, MISSING = Kind
ROUNDS = 20
PASSED = 2
QUESTIONS = 5
"""For each contribution of the others: a question is a fifth of its length."""
SUMS_OF_FLOOD = 4


@pytest.fixture
def network() -> TofinoNetwork:
    made = TofinoNetwork(Switch(MAIN, generation=1))
    for job in (VICTIM, FLOODER, BELOW):
        made.admit(job)
    return made


def frame(
    network: TofinoNetwork, job: Job, worker: int, kind: int, round_number: int = 1, slot: int = 0
) -> tuple[int, bytes]:
    """The port at which it arrives, and its bytes."""
    index = job.parent if worker == PARENT else worker
    assert index is not None
    fields = {"worker": index, "cell": 2 * slot + (round_number & 1), "round": round_number, "tensor": 1}
    datagram = Header(kind=kind, job=job.number, key=job.key, **fields).pack()
    datagram += struct.pack("!I", 1) * 64 * (kind in (DATA, RESULT))
    member = Member(job.number, worker)
    return network.port(member), network.own_frame(member, datagram).pack()


def one_pass(network: TofinoNetwork, port: int, content: bytes) -> list[Copy]:
    assert isinstance(network.chip, Switch)
    return list(network.chip.one_pass(port, content))


def queue_of(network: TofinoNetwork, job: Job, worker: int, kind: int, round_number: int = 1) -> int:
    (looping,) = one_pass(network, *frame(network, job, worker, kind, round_number))
    assert looping.port == RECIRCULATION_PORT[1]
    assert all(copy.queue == 0 for copy in one_pass(network, looping.port, looping.frame)), "it leaves by no other"
    return looping.queue


def test_each_sum_recirculates_in_the_queue_of_its_fate(network: TofinoNetwork) -> None:
    assert one_pass(network, *frame(network, VICTIM, 0, DATA)) == []
    assert queue_of(network, VICTIM, 1, DATA) == SUMS
    assert queue_of(network, VICTIM, 1, DATA) == ANSWERS, "a duplicate"
    assert queue_of(network, VICTIM, 0, QUESTION) == ANSWERS
    assert one_pass(network, *frame(network, VICTIM, 0, DATA, 2)) == []
    assert queue_of(network, VICTIM, 1, EMPTY, 2) == SUMS
    assert queue_of(network, VICTIM, 1, EMPTY, 2) == ANSWERS, "a duplicate"


def test_a_sum_for_the_parent_recirculates_with_the_sums_unless_the_parent_asks_again(network: TofinoNetwork) -> None:
    assert one_pass(network, *frame(network, BELOW, 0, DATA)) == []
    assert queue_of(network, BELOW, 1, EMPTY) == SUMS
    assert queue_of(network, BELOW, PARENT, MISSING) == ANSWERS
    results = one_pass(network, *frame(network, BELOW, PARENT, RESULT))
    assert [copy.queue for copy in results] == [0, 0]
    assert queue_of(network, BELOW, 0, QUESTION) == ANSWERS


def test_what_does_not_recirculate_is_in_the_first_queue(network: TofinoNetwork) -> None:
    (missing,) = one_pass(network, *frame(network, VICTIM, 0, QUESTION))
    assert one_pass(network, *frame(network, VICTIM, 0, META)) == []
    results = one_pass(network, *frame(network, VICTIM, 1, META))
    assert [copy.queue for copy in (missing, *results)] == [0, 0, 0]


class RecirculationPort:
    """Of weighted rounds: in each one a queue passes as many packets as its weight, if it has them. On this way all are
    of one length."""

    def __init__(self, weights: Mapping[int, int]) -> None:
        self._queues: dict[int, deque[Copy]] = {number: deque() for number in weights}
        self._turns = deque(number for number, weight in weights.items() for _ in range(weight))
        self.lost: Counter[int] = Counter()

    def take(self, copy: Copy) -> None:
        """A port with one queue has all packets in it."""
        queue = self._queues[copy.queue] if len(self._queues) > 1 else self._queues[ANSWERS]
        if len(queue) == ROOM:
            self.lost[copy.queue] += 1
        else:
            queue.append(copy)

    def next(self) -> Copy | None:
        for _ in range(len(self._turns)):
            self._turns.rotate(-1)
            if queue := self._queues[self._turns[-1]]:
                return queue.popleft()
        return None


def play(
    network: TofinoNetwork, port: RecirculationPort, arriving: Callable[[int], list[tuple[int, bytes]]]
) -> Counter[int]:
    """Plays rounds in which more wants to pass the port than can; gives how many packets of each queue came through and
    left the switch."""
    left: Counter[int] = Counter()
    for round_number in range(1, ROUNDS + 1):
        for content in arriving(round_number):
            for looping in one_pass(network, *content):
                port.take(looping)
        for _ in range(PASSED):
            if (served := port.next()) is not None:
                left[served.queue] += one_pass(network, served.port, served.frame) != []
    return left


def under_flood_of_questions(network: TofinoNetwork, port: RecirculationPort) -> Counter[int]:
    """A job sums, while another job's worker asks and asks."""
    assert one_pass(network, *frame(network, FLOODER, 0, DATA))

    def arriving(round_number: int) -> list[tuple[int, bytes]]:
        questions = [frame(network, FLOODER, 0, QUESTION)] * QUESTIONS
        return questions + [frame(network, VICTIM, worker, DATA, round_number) for worker in (0, 1)]

    return play(network, port, arriving)


def under_flood_of_sums(network: TofinoNetwork, port: RecirculationPort) -> Counter[int]:
    """A worker asks for its sum, while another job sums at more than the port's rate."""
    assert [len(one_pass(network, *frame(network, VICTIM, worker, DATA))) for worker in (0, 1)] == [0, 1]

    def arriving(round_number: int) -> list[tuple[int, bytes]]:
        numbers = range(round_number * SUMS_OF_FLOOD, (round_number + 1) * SUMS_OF_FLOOD)
        sums = [frame(network, FLOODER, 0, DATA, 1 + n // FLOODER.slots, n % FLOODER.slots) for n in numbers]
        return [*sums, frame(network, VICTIM, 0, QUESTION)]

    return play(network, port, arriving)


def test_a_flood_of_questions_loses_no_sum_of_another_job(network: TofinoNetwork) -> None:
    port = RecirculationPort(WEIGHTS)
    assert under_flood_of_questions(network, port)[SUMS] == ROUNDS
    assert port.lost[SUMS] == 0
    assert port.lost[ANSWERS] > ROUNDS * QUESTIONS // 2, "it was a flood"


def test_in_one_queue_the_flood_would_lose_sums(network: TofinoNetwork) -> None:
    assert under_flood_of_questions(network, RecirculationPort({ANSWERS: 1}))[SUMS] < ROUNDS // 2


def test_a_flood_of_sums_leaves_answers_their_share(network: TofinoNetwork) -> None:
    port = RecirculationPort(WEIGHTS)
    left = under_flood_of_sums(network, port)
    assert left == {SUMS: ROUNDS * PASSED * 7 // 8, ANSWERS: ROUNDS * PASSED // 8}
    assert port.lost[SUMS] > ROUNDS, "it was a flood"


def test_without_a_share_no_sum_that_is_lost_would_be_repaired(network: TofinoNetwork) -> None:
    assert under_flood_of_sums(network, RecirculationPort({SUMS: 1000, ANSWERS: 1}))[ANSWERS] == 0
