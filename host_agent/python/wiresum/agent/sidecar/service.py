"""What a sidecar does for one session of its worker.

    the worker says                          the sidecar answers
    join version job rank world_size queue
         and any WIRESUM_... as a field      joining process timeout_ms
                                             bind address count first last, for each aggregator:
                                             bound port, or unbound text
                                             aggregator ..., for each; joined ...; or failed error text
    explain status tensor greeted states     ended error text: the job ends for everybody
    greeting-unanswered states               ended error text
    greeting-wrong found expected            ended error text
    abort reason                             nothing
    leave                                    hangs up, having left

    the sidecar says                         the worker answers
    ask-state id                             state id states; or no-state id, before there is a data path
    ended error text                         nothing: it is over

States are TrafficStats, for each aggregator: fields like packets_sent.0.

The worker answers what it is asked at once, from a thread that does nothing else. One that does not is stopped, and
then the sidecar gives up the connection to the service, as if the worker had attended itself.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import queue
import threading
from collections.abc import Mapping

from wiresum.agent import causes
from wiresum.agent.aggregators import Aggregator, Aggregators
from wiresum.agent.causes import TOO_LARGE, Causes, Status
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import JobAbortedError, SwitchUnreachableError, WiresumError
from wiresum.agent.joining import Interruption
from wiresum.agent.membership import NO_ROUND
from wiresum.agent.session import EXACT_ELEMENTS_MAX
from wiresum.agent.sidecar.lines import Channel, Line, LineError
from wiresum.agent.statistics import NO_TRAFFIC, TrafficStats
from wiresum.agent.way_out import spin_us_of

log = logging.getLogger(__name__)

VERSION = 4
ANSWER_S_MAX = 15.0
"""How long a worker may take to answer; half of the time after which the service takes it for lost, if that is less."""
_STATUSES: Mapping[str, Status] = {
    "timed-out": Status.TIMED_OUT,
    "diverged": Status.DIVERGED,
    "aborted": Status.ABORTED,
    "no-memory": Status.NO_MEMORY,
}


class _BoundPorts:
    """Of the worker's, which sends from them."""

    def __init__(self, base_port: int) -> None:
        self.base_port = base_port


class Service:
    """`run` returns when the session is over."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._interruption = Interruption()
        self._answers: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._asked = 0
        self._answer_s_max = ANSWER_S_MAX
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._aggregators: Aggregators | None = None
        self._causes: Causes | None = None
        self._ended = False

    def run(self) -> None:
        joining: threading.Thread | None = None
        has_left = False
        why = "its process ended without leaving"
        try:
            first = self._channel.receive()
            if first is not None:
                joining = threading.Thread(target=self._join, args=(first,), name="wiresum-join", daemon=True)
                joining.start()
            while not has_left and (line := self._channel.receive()) is not None:
                has_left = line.word == "leave"
                self._take(line)
        except LineError as error:
            log.error("the worker of a session says what makes no sense: %s", error)
            why = f"its sidecar does not understand it: {error}"
        finally:
            self._answers.put(None)
            self._over.set()
            self._interruption.interrupt(WiresumError("the worker has gone"))
            if joining is not None:
                joining.join()
            if self._aggregators is not None:
                if not has_left and not self._ended:
                    self._aggregators.abort(f"{self._who}: {why}")
                self._aggregators.leave()
            self._channel.hang_up()
            self._channel.close()

    def hang_up(self) -> None:
        """`run` returns soon."""
        self._channel.hang_up()

    def _take(self, line: Line) -> None:
        """What the worker says once it is there. Raises LineError."""
        if line.word in ("bound", "unbound", "state", "no-state"):
            self._answers.put(line)
        elif line.word == "leave":
            self._ended = True
        elif line.word == "abort":
            self._end(JobAbortedError(line.text("reason")), tell_others=True)
        else:
            self._explain(line)

    # Joining.

    def _join(self, line: Line) -> None:
        """Runs in a thread of its own, so that the worker is heard meanwhile."""
        try:
            config = self._config_of(line)
            self._channel.send("joining", process=os.getpid(), timeout_ms=int(config.join_timeout_s * 1000))
            aggregators = Aggregators.join(
                config,
                job_name=line.text("job"),
                rank=line.number("rank"),
                world_size=line.number("world_size"),
                queue=line.number("queue", 1) == 1,
                bind=self._bind,
                interruption=self._interruption,
            )
        except WiresumError as error:
            self._channel.send("failed", error=type(error).__name__, text=error)
        except ValueError as error:  # a setting, or a line, that makes no sense
            self._channel.send("failed", error="ValueError", text=error)
        except (OSError, RuntimeError) as error:  # what the system, or native code, refuses
            self._channel.send("failed", error="WiresumError", text=error)
        else:
            self._tell(config, line.text("job"), aggregators)

    def _config_of(self, line: Line) -> AgentConfig:
        """Raises a ValueError."""
        if line.word != "join" or line.number("version") != VERSION:
            raise LineError(
                f"libwiresum and the installed wiresum are of different versions (the sidecar speaks {VERSION}): "
                "let WIRESUM_PYTHON name the interpreter that has the same version of wiresum as the library"
            )
        settings = {name: value for name, value in line.fields.items() if name.startswith("WIRESUM_")}
        return AgentConfig.from_environment(os.environ | settings)

    def _bind(self, address: str, count: int, within: tuple[int, int]) -> _BoundPorts:
        answer = self._ask("bind", address=address, count=count, first=within[0], last=within[1])
        if answer is None:
            self._interruption.check()
            raise WiresumError("the worker did not bind its ports")
        if answer.word != "bound":
            raise SwitchUnreachableError(answer.fields.get("text", "the worker could not bind its ports"))
        return _BoundPorts(answer.number("port", 65535))

    def _tell(self, config: AgentConfig, job_name: str, aggregators: Aggregators) -> None:
        with self._lock:
            self._aggregators = aggregators
            self._causes = Causes(aggregators, job_name)
        lost_s = min(aggregator.membership.grant.heartbeat_lost_ms for aggregator in aggregators) / 1000
        self._answer_s_max = min(ANSWER_S_MAX, lost_s / 2)
        self._who = f"rank {next(iter(aggregators)).membership.grant.rank} of job '{job_name}'"
        for aggregator in aggregators:
            self._channel.send("aggregator", **_fields_of(aggregator))
        threads = sum(aggregator.membership.grant.threads for aggregator in aggregators)
        self._channel.send(
            "joined",
            spin_ns=1000 * spin_us_of(config, threads),
            offload=int(config.offload),
            transport=config.transport,
            device=config.device,
            lane_bits=config.bits,
            exact_elements_max=EXACT_ELEMENTS_MAX[config.precision],
            sparse=int(config.sparse),
            greeting_ms=int(1000 * causes.GREETING_TIMEOUT_S),
        )
        aggregators.attend(on_ended=self._end, progress=self._round, traffic=self._traffic)

    # While the job runs.

    def _round(self, aggregator: int) -> int | None:
        """Asked for with each heartbeat, and so it is here that a packet which can never leave is noticed. None: the
        worker does not answer."""
        answer = self._ask("ask-state")
        if answer is None and not self._over.is_set():
            return None
        if answer is None or answer.word != "state":
            return NO_ROUND
        state = _state_of(answer, aggregator)
        if state.transport_error in TOO_LARGE and self._causes is not None:
            error = self._causes.of_shrunken_path(aggregator)
            if error is not None:
                self._end(error, tell_others=True)
        return state.round_newest

    def _traffic(self, aggregator: int) -> TrafficStats:
        answer = self._ask("ask-state")
        if answer is None or answer.word != "state":
            return NO_TRAFFIC
        return _state_of(answer, aggregator)

    def _ask(self, word: str, **fields: object) -> Line | None:
        """The worker's answer; None if it gives none."""
        with self._asking:
            self._asked += 1
            if self._over.is_set() or not self._channel.send(word, id=self._asked, **fields):
                return None
            while True:
                try:
                    answer = self._answers.get(timeout=self._answer_s_max)
                except queue.Empty:
                    return None
                if answer is None:
                    self._answers.put(None)  # for who asks next
                    return None
                if answer.number("id") == self._asked:  # else it answers what nobody waits for any more
                    return answer

    def _explain(self, line: Line) -> None:
        """Raises LineError."""
        with self._lock:
            aggregators, said = self._aggregators, self._causes
        if aggregators is None or said is None:
            raise LineError(f"'{line.word}' came before the job was joined")
        if line.word == "explain":
            status = _STATUSES.get(line.text("status"))
            if status is None:
                raise LineError(f"there is no status {line.text('status')!r}")
            states = [_state_of(line, index) for index in range(len(aggregators))]
            error = said.of_status(status, line.number("tensor"), states, greeted=line.number("greeted", 1) == 1)
            self._end(error, tell_others=True)
        elif line.word == "greeting-unanswered":
            states = [_state_of(line, index) for index in range(len(aggregators))]
            self._end(said.of_unanswered_greeting(states), tell_others=True)
        elif line.word == "greeting-wrong":
            found, expected = (_signed(line.number(name)) for name in ("found", "expected"))
            self._end(said.of_wrong_greeting(found, expected), tell_others=True)
        else:
            raise LineError(f"'{line.word}' is nothing that a worker says")

    def _end(self, error: WiresumError, *, tell_others: bool = False) -> None:
        """The first end is the cause."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            aggregators = self._aggregators
        self._channel.send("ended", error=type(error).__name__, text=error)
        if tell_others and aggregators is not None:
            aggregators.abort(str(error))


def _state_of(line: Line, aggregator: int) -> TrafficStats:
    """Raises LineError."""
    names = (field.name for field in dataclasses.fields(TrafficStats))
    return TrafficStats(**{name: line.number(f"{name}.{aggregator}", 2**64 - 1) for name in names})


def _fields_of(aggregator: Aggregator) -> dict[str, object]:
    grant = aggregator.membership.grant
    group = grant.results_group
    return {
        "switch": aggregator.switch,
        "job": grant.job,
        "key": grant.key,
        "worker": grant.worker,
        "workers": grant.workers,
        "lanes": grant.lanes,
        "slots": grant.slots,
        "threads": grant.threads,
        "own_address": aggregator.address,
        "switch_address": grant.switch_endpoint.address,
        "switch_port": grant.switch_endpoint.port,
        "group_address": group.address if group else "0.0.0.0",
        "group_port": group.port if group else 0,
    }


def _signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word
