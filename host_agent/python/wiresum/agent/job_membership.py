"""A worker's membership in its job, as a session asks for it: the calls of host_agent/src/session/membership.hpp.

Calls come from the bindings, where the session is in this process, or from the sidecar's pipe. Arguments and results
are text by name, as on the pipe: `Grant` in host_agent/src/session/grant.hpp reads what `join` returns, and
`Session::state` there makes a state.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields

from wiresum.agent import causes
from wiresum.agent.aggregators import Aggregator, Aggregators, Bind
from wiresum.agent.causes import TOO_LARGE, Causes
from wiresum.agent.config import AUTO, AgentConfig
from wiresum.agent.errors import WiresumError
from wiresum.agent.fallback import Fallback
from wiresum.agent.joining import Interruption
from wiresum.agent.statistics import NO_TRAFFIC, Moved, TrafficStats
from wiresum.agent.way_out import spin_us_of
from wiresum.agent.world import WORLD, World
from wiresum.join import Admission, JoinReply

EXACT_ELEMENTS_MAX = {"auto": 4096, "adaptive": 4096, "exact": 2**64 - 1, "block": 0}
"""The longest sum of floats that is rounded once, by AgentConfig.precision (docs/numerics.md has the figures)."""
_OF_THE_DATA_PATH = ("job", "key", "worker", "workers", "lanes", "slots", "threads")
"""Fields of a JoinReply that the data path needs."""

_POSITION_BYTES = 4
_ROUND_FIRST = 1
"""The first round in every lease, and so the position of a slot by which nothing has come."""

Fields = Mapping[str, str]

log = logging.getLogger(__name__)
_first_warning = threading.Lock()
"""Guards the one warning about lost digits; never released, so the warning is printed once."""


class JobMembership:
    """Any thread may call any method."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        job_name: str,
        rank: int,
        world_size: int,
        admission: Admission = Admission.QUEUE,
        interruption: Interruption | None = None,
        world: World = WORLD,
    ) -> None:
        self._config, self._world = config, world
        self._job_name = job_name
        self._rank = rank
        self._world_size = world_size
        self._admission = admission
        self._interruption = interruption
        self._fallback = Fallback.of(config, job_name, rank)
        self._aggregators: Aggregators | None = None
        self._causes: Causes | None = None
        self._ask: Callable[[], Fields | None] = dict
        self._end: Callable[[WiresumError, bool], None] = lambda error, tell_others: None
        self._moving = threading.Lock()
        """This lock guards the attributes below."""
        self._halt_session: Callable[[int], str] | None = None
        self._move_session: Callable[[Fields], None] | None = None
        self._halted: set[int] = set()
        """Aggregators where the job was halted before there was a session."""
        self._moved: dict[int, JoinReply] = {}
        """Grants of moves before there was a session, not yet passed on to one."""

    def join(self, bind: Bind) -> list[tuple[str, dict[str, str]]]:
        """Joins all aggregators, and returns what each has granted, and then the session's own settings.
        `Aggregators.join` says what `bind` is, and what is raised."""
        try:
            aggregators = self._aggregators = Aggregators.join(
                self._config,
                job_name=self._job_name,
                rank=self._rank,
                world_size=self._world_size,
                admission=self._admission,
                bind=bind,
                on_ended=lambda error: self._end(error, False),
                interruption=self._interruption,
                paths=self,
                fallback=self._fallback,
                world=self._world,
            )
        except BaseException:
            self._give_back_fallback()
            raise
        if self._fallback is not None:
            self._fallback.know(next(iter(aggregators)).membership.grant)
        self._causes = Causes(aggregators, f"{self._config.named(self._rank)} of job '{self._job_name}'")
        if self.sharing[:1] == [self._rank]:
            log.info("%d workers of this host share one stream in job '%s'", len(self.sharing), self._job_name)
        with self._moving:
            said: list[tuple[str, dict[str, object]]] = [
                ("aggregator", self._place(aggregator, self._moved.pop(index, aggregator.membership.grant)))
                for index, aggregator in enumerate(aggregators)
            ]
        config = self._config
        joined: dict[str, object] = {
            "rank": self._rank,
            "spin_ns": 1000 * spin_us_of(sum(one.membership.grant.threads for one in aggregators)),
            "transport": config.transport,
            "bits": config.bits,
            "exact_elements_max": EXACT_ELEMENTS_MAX[config.precision],
            "exact_when_wide": int(config.precision == "adaptive"),
            "sparse": int(config.sparse),
            "greeting_ms": int(1000 * causes.GREETING_TIMEOUT_S),
        }
        said.append(("joined", joined))
        return [(word, {name: str(value) for name, value in values.items()}) for word, values in said]

    def attend(
        self,
        ask: Callable[[], Fields | None],
        end: Callable[[WiresumError, bool], None],
        halt: Callable[[int], str],
        move: Callable[[Fields], None],
    ) -> None:
        """`ask` gives the session's state: empty before there is a data path, None if the worker is stopped. `end` is
        called, in any thread, when the job is over, with a flag for telling the others. `halt` and `move` are those of
        session.hpp; their errors end the job."""
        self._ask, self._end = ask, end
        with self._moving:
            self._halt_session, self._move_session = halt, move
            for aggregator, grant in self._moved.items():
                halt(aggregator)
                self._move_to(aggregator, grant, bytes(grant.slots))
            for aggregator in self._halted:
                halt(aggregator)
        if self._joined.ended is not None:
            end(self._joined.ended, False)

    def halt(self, aggregator: int, slots: int) -> bytes:
        """Halts the data path to an aggregator, where the job has so many slots; returns their positions as in
        join.proto."""
        with self._moving:
            if self._halt_session is None:
                self._halted.add(aggregator)
                return _ROUND_FIRST.to_bytes(_POSITION_BYTES, "big") * slots
            return bytes.fromhex(self._halt_session(aggregator))

    def move(self, aggregator: int, grant: JoinReply, roles: bytes) -> None:
        """Continues a halted data path at another lease. Raises a ValueError for an impossible move."""
        with self._moving:
            if self._move_session is not None:
                self._move_to(aggregator, grant, roles)
            elif any(roles):
                raise ValueError("a worker that has sent nothing has nothing to repeat")
            else:
                self._moved[aggregator] = grant
                self._halted.discard(aggregator)

    def _move_to(self, aggregator: int, grant: JoinReply, roles: bytes) -> None:
        assert self._move_session is not None
        place = self._place(list(self._joined)[aggregator], grant)
        place |= {"aggregator": aggregator, "roles": "".join(map(str, roles))}
        self._move_session({name: str(value) for name, value in place.items()})

    def _place(self, aggregator: Aggregator, grant: JoinReply) -> dict[str, object]:
        """Returns what the data path must know of an aggregator, and of its grant."""
        sharing = grant.sharing
        is_switch_used = len(sharing.ranks) < grant.workers
        return {name: getattr(grant, name) for name in _OF_THE_DATA_PATH} | {
            "check_word": int(self._has_check_words),
            "switch": aggregator.switch,
            "own_address": aggregator.address,
            "switch_address": grant.switch_endpoint.address,
            "switch_port": grant.switch_endpoint.port if is_switch_used else 0,
            "group_address": grant.results_group.address or "0.0.0.0",
            "group_port": grant.results_group.port if is_switch_used else 0,
            "host_number": sharing.number,
            "host_ranks": ",".join(map(str, sharing.ranks)),
            "host_secret": sharing.secret.hex(),
        }

    @property
    def _has_check_words(self) -> bool:
        if self._config.check_word != AUTO:
            return self._config.check_word == "1"
        return any(one.membership.grant.check_word for one in self._joined)

    def explain(self, what: str, told: Fields) -> WiresumError:
        """Explains why the data path has failed. Raises a ValueError or a KeyError if `told` makes no sense."""
        if self._causes is None:
            raise ValueError(f"'{what}' came before the job was joined")
        if what == "explain":
            states, greeted = self._states(told), told["greeted"] == "1"
            return self._causes.of_status(told["status"], int(told["tensor"]), states, greeted=greeted)
        if what == "greeting-wrong":
            return self._causes.of_wrong_greeting(int(told["found"]), int(told["expected"]))
        raise ValueError(f"'{what}' is nothing that a session asks")

    def abort(self, reason: str) -> None:
        """Ends the job for everybody. Does not raise."""
        if self._aggregators is not None:
            self._aggregators.abort(reason)

    def leave(self) -> None:
        """Leaves all aggregators. Idempotent, bounded, does not raise."""
        if self._aggregators is not None:
            state = self._ask()
            for stats in self._states(state) if state else ():
                _warn_of_lost_digits(stats)
            self._aggregators.leave()
        self._give_back_fallback()

    def _give_back_fallback(self) -> None:
        if self._fallback is not None:
            self._fallback.give_back()

    @property
    def _joined(self) -> Aggregators:
        assert self._aggregators is not None, "it has joined"
        return self._aggregators

    @property
    def members_secret(self) -> bytes:
        """The first aggregator's secret: the same at all workers of the job, and known to no others."""
        return next(iter(self._joined)).membership.grant.members_secret

    @property
    def sharing(self) -> list[int]:
        """The ranks of this host with one stream to the switch, or none if this worker has its own."""
        return list(next(iter(self._joined)).membership.grant.sharing.ranks)

    @property
    def service(self) -> str:
        """The endpoints that serve the job now, one of each aggregator, joined by `+`."""
        return "+".join(one.membership.service for one in self._joined)

    @property
    def moved(self) -> Moved | None:
        """The time and cause of the job's last move, at any aggregator."""
        return max((moved for one in self._joined if (moved := one.membership.moved)), default=None)

    @property
    def heartbeat_lost_s(self) -> float:
        """An aggregator takes this worker for lost after so long a silence."""
        return min(one.membership.grant.heartbeat_lost_ms for one in self._joined) / 1000

    def progress(self, aggregator: int) -> TrafficStats | None:
        """Returns the traffic for a heartbeat; None if the worker does not answer. Also notices a packet that can never
        leave, and a failed collective that nobody waits for."""
        state = self._ask()
        if not state:
            return None if state is None else NO_TRAFFIC
        error: WiresumError | None = None
        stats = self._states(state)[aggregator]
        if "status" in state:
            error = self.explain("explain", state)
        elif stats.transport_error in TOO_LARGE and self._causes is not None:
            error = self._causes.of_shrunken_path(aggregator)
        _warn_of_lost_digits(stats)
        if error is not None:
            self._end(error, True)
        return stats

    def traffic(self, aggregator: int) -> TrafficStats:
        state = self._ask()
        return self._states(state)[aggregator] if state else NO_TRAFFIC

    def _states(self, told: Fields) -> list[TrafficStats]:
        names = [field.name for field in fields(TrafficStats)]
        return [
            TrafficStats(**{name: int(told[f"{name}.{index}"]) for name in names}) for index in range(len(self._joined))
        ]


def _warn_of_lost_digits(stats: TrafficStats) -> None:
    """Warns once in a process."""
    if stats.chunks_wide == 0 or not _first_warning.acquire(blocking=False):
        return
    log.warning(
        "in %d packets so far, small floats lost most of their digits beside large ones. If they matter, "
        "WIRESUM_PRECISION=adaptive sums such packets exactly, in more time (docs/numerics.md)",
        stats.chunks_wide,
    )
