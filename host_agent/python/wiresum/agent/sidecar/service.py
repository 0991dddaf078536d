"""A sidecar's service for one session of its worker: it has the membership, whose calls come over a socket.

    the worker says                          the sidecar answers
    join version job rank world_size
         admission timeout_ms settings
         environment                         joining process
                                             bind id address count first last, for each aggregator:
                                             bound id port, or unbound id text
                                             aggregator ..., for each; joined ...; or failed error text
    explain id ...                           explained id error text
    greeting-wrong id ...                    explained id error text
    abort reason                             nothing
    leave                                    hangs up, having left

    the sidecar says                         the worker answers
    ask-state id                             state id ...: empty before there is a data path
    ask-halt id aggregator                   halted id positions, or unmoved id error text
    ask-move id aggregator roles ...         moved id, or unmoved id error text
    ended error text tell_others             nothing, or abort: it is over

`settings` is what the program gave for this session, and `environment` what variables it has that may be settings:
NAME=value, each with a NUL after it. What the other fields mean is said in wiresum/agent/job_membership.py and
host_agent/src/session/membership.hpp.

The worker answers what it is asked at once, from a thread that does nothing else. One that does not is stopped, and
then the sidecar gives up the connection to the service, as if the worker had attended itself.
"""

from __future__ import annotations

import logging
import os
import queue
import threading

from wiresum.agent.config import AgentConfig, refuse_unknown
from wiresum.agent.errors import SessionClosedError, SwitchUnreachableError, WiresumError
from wiresum.agent.job_membership import Fields, JobMembership
from wiresum.agent.joining import Interruption
from wiresum.agent.sidecar.lines import Channel, Line, LineError
from wiresum.join import Admission, name_problem
from wiresum.join.constants import SIDECAR_VERSION

log = logging.getLogger(__name__)

ANSWER_S_MAX = 15.0
"""The longest wait for a worker's answer; half of the service's time-out for a lost worker, if that is less."""

GLOBAL_RANK_MAX = 2**31 - 1


class Service:
    """A session's service; `run` returns when the session is over."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._interruption = Interruption()
        self._answers: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._asked = 0
        self._answer_s_max = ANSWER_S_MAX
        self._over = threading.Event()
        self._membership: JobMembership | None = None
        self._who = ""
        self._is_told = False
        """True once the others know of the end."""

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
            if joining is None:
                self._channel.send("failed", error="WiresumError", text=f"the sidecar does not understand: {error}")
        finally:
            self._answers.put(None)
            self._over.set()
            self._interruption.interrupt(WiresumError("the worker has gone"))
            if joining is not None:
                joining.join()
            if self._membership is not None:
                if not has_left and not self._is_told:
                    self._membership.abort(f"{self._who}: {why}")
                self._membership.leave()
            self._channel.hang_up()
            self._channel.close()

    def hang_up(self) -> None:
        """Makes `run` return soon."""
        self._channel.hang_up()

    def _take(self, line: Line) -> None:
        """Takes a line of the worker. Raises LineError."""
        if line.word in ("bound", "unbound", "state", "halted", "moved", "unmoved"):
            self._answers.put(line)
        elif line.word == "abort" and self._membership is not None:
            self._is_told = True
            self._membership.abort(line.text("reason"))
        elif line.word != "leave":
            self._explain(line)

    # Joining.

    def _join(self, line: Line) -> None:
        """Runs in a thread of its own, so that the worker is heard meanwhile."""
        try:
            config = self._config_of(line)
            if problem := name_problem(line.text("job")):
                raise ValueError(f"the job's name, {line.text('job')!r}, {problem}")
            self._channel.send("joining", process=os.getpid())
            self._who = f"{config.named(line.number('rank'))} of job '{line.text('job')}'"
            self._membership = JobMembership(
                config,
                job_name=line.text("job"),
                rank=line.number("rank"),
                world_size=line.number("world_size"),
                admission=Admission.Value(line.text("admission")),
                interruption=self._interruption,
            )
            granted = self._membership.join(self._bind)
        except WiresumError as error:
            self._channel.send("failed", error=type(error).__name__, text=error)
        except ValueError as error:  # a setting, or a line, that makes no sense
            self._channel.send("failed", error="ValueError", text=error)
        except (OSError, RuntimeError) as error:  # refused by the system or native code
            self._channel.send("failed", error="WiresumError", text=error)
        else:
            self._answer_s_max = min(ANSWER_S_MAX, self._membership.heartbeat_lost_s / 2)
            for word, fields in granted:
                self._channel.send(word, **fields)
            self._membership.attend(self._state, self._end, self._halt, self._move)

    def _config_of(self, line: Line) -> AgentConfig:
        """Reads the settings. Raises a ValueError."""
        if line.word != "join" or line.number("version") != SIDECAR_VERSION:
            raise LineError(
                "libwiresum and the installed wiresum are of different versions "
                f"(the sidecar speaks {SIDECAR_VERSION}): "
                "let WIRESUM_PYTHON name the interpreter that has the same version of wiresum as the library"
            )
        settings = _variables_in(line.text("settings"))
        global_rank = settings.pop("WIRESUM_GLOBAL_RANK", None)  # of one session: the environment cannot give it
        if global_rank is not None and not (global_rank.isdecimal() and int(global_rank) <= GLOBAL_RANK_MAX):
            raise ValueError(f"WIRESUM_GLOBAL_RANK is {global_rank!r}: it must be 0 to {GLOBAL_RANK_MAX}")
        refuse_unknown(settings)
        return AgentConfig.from_environment(
            _variables_in(line.text("environment")) | settings,
            join_timeout_s=line.number("timeout_ms") / 1000,
            global_rank=None if global_rank is None else int(global_rank),
        )

    def _bind(self, address: str, count: int, within: tuple[int, int]) -> int:
        answer = self._ask("bind", address=address, count=count, first=within[0], last=within[1])
        if answer is None:
            self._interruption.check()
            raise WiresumError("the worker did not bind its ports")
        if answer.word != "bound":
            raise SwitchUnreachableError(answer.fields.get("text", "the worker could not bind its ports"))
        return answer.number("port", 65535)

    # While the job runs.

    def _state(self) -> Fields | None:
        """Returns None if the worker does not answer."""
        answer = self._ask("ask-state")
        if answer is None:
            return {} if self._over.is_set() else None
        return {name: value for name, value in answer.fields.items() if name != "id"}

    def _halt(self, aggregator: int) -> str:
        return self._must("ask-halt", "halted", aggregator=aggregator).text("positions")

    def _move(self, to: Fields) -> None:
        self._must("ask-move", "moved", **to)

    def _must(self, word: str, done: str, **fields: object) -> Line:
        """Returns the worker's answer. Raises a WiresumError if the worker has not done what it must, a
        SessionClosedError if it leaves."""
        answer = self._ask(word, **fields)
        if answer is None and self._over.is_set():
            raise SessionClosedError("the worker has left")
        if answer is None:
            raise WiresumError("the worker does not answer")
        if answer.word != done:
            closed = answer.fields.get("error") == SessionClosedError.__name__
            text = answer.fields.get("text", f"the worker answers '{answer.word}'")
            raise SessionClosedError(text) if closed else WiresumError(text)
        return answer

    def _ask(self, word: str, **fields: object) -> Line | None:
        """Returns the worker's answer; None if it gives none."""
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
                    self._answers.put(None)  # for the next question
                    return None
                if answer.number("id") == self._asked:  # else a late answer
                    return answer

    def _explain(self, line: Line) -> None:
        """Answers why the data path failed. Raises LineError."""
        if self._membership is None:
            raise LineError(f"'{line.word}' came before the job was joined")
        try:
            error = self._membership.explain(line.word, line.fields)
        except (KeyError, ValueError) as wrong:
            raise LineError(f"'{line.word}' makes no sense: {wrong}") from None
        self._channel.send("explained", id=line.text("id"), error=type(error).__name__, text=error)

    def _end(self, error: WiresumError, tell_others: bool) -> None:
        self._is_told = self._is_told or not tell_others
        self._channel.send("ended", error=type(error).__name__, text=error, tell_others=int(tell_others))


def _variables_in(text: str) -> dict[str, str]:
    """Parses "NAME=value", each with a NUL after it."""
    pairs = (variable.partition("=") for variable in text.split("\0")[:-1])
    return {name: value for name, _, value in pairs}
