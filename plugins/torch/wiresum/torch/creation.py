"""Makes a process group: its job name at the switch, its session, and Gloo beside it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store

from wiresum.agent import fallback, own_switch
from wiresum.agent.config import AUTO, JOIN_TIMEOUT_S_MAX, LOCAL, OFF, AgentConfig
from wiresum.agent.errors import JoinError, WiresumError
from wiresum.agent.machine import host_id
from wiresum.agent.polling import sleep_until
from wiresum.agent.session import Session
from wiresum.join import Admission, name_problem
from wiresum.join.constants import JOB_NAME_BYTES_MAX
from wiresum.torch import extension, waits
from wiresum.torch.backend import Unconnected, WiresumBackend
from wiresum.torch.calls import KEPT
from wiresum.torch.contact import Contact, naming_store
from wiresum.torch.errors import WiresumTimeoutError, as_torch_error
from wiresum.torch.flight_recorder import Group
from wiresum.torch.gloo import Gloo, PlainGloo, device_of, group_of, make_gloo, without_extension
from wiresum.torch.network import Network, looks
from wiresum.torch.no_room import NoRoom
from wiresum.torch.options import Options, checked
from wiresum.torch.pieces import WHOLE_BYTES_MAX

log = logging.getLogger("wiresum")

OLDEST = "2.11"
"""The oldest PyTorch with which the tests pass; as in pyproject.toml."""

MEETING_POLL_S = 0.005
REST_TIMEOUT = timedelta(minutes=5)
"""How long members that go on after `shrink` wait for each other, unless their group's time-out is shorter."""

_generations: Counter[str] = Counter()
"""How often this process has made a group of each name."""

_job_names: dict[str, str] = {}
"""The newest job of each group, by the group's name; "" is the default group, whose job name is the prefix of all
others."""

_no_room = NoRoom(looks)

_JOINED = "joined"
_REFUSED = "refused "
_FAILED = "failed "


def create_group(backend_options: Any, pg_options: Any, *, may_queue: bool = False) -> Any:
    """Makes the object that PyTorch uses as the backend. init_process_group calls it, and new_group at the new group's
    members. A subgroup that the switch has no room for uses Gloo, unless it `may_queue` as the default group does."""
    if torch.__version__ < OLDEST:
        raise RuntimeError(
            f"wiresum needs PyTorch {OLDEST} or later, and this is {torch.__version__}: pip install 'torch>={OLDEST}'"
        )
    options = checked(pg_options)
    members = [int(member) for member in backend_options.global_ranks_in_group]
    rank, size = int(backend_options.group_rank), int(backend_options.group_size)
    name, description = str(backend_options.group_id), "undefined" if members else "default_pg"
    group = Group(name, description, members or list(range(size)))
    spec = GroupSpec(
        store=backend_options.store,
        group=group,
        subgroup=name if members else "",
        may_refuse=bool(members) and not may_queue,
        options=options,
        contact=Contact(group.ranks[rank], options),
    )
    timeout = backend_options.timeout
    native: ModuleType | None
    made: Unconnected | WiresumBackend
    if getattr(backend_options, "enable_reconfigure", False):  # from PyTorch 2.14 on
        native, made = extension.load(), Unconnected(spec, rank, size, timeout)
        if native is None:
            raise without_extension("enable_reconfigure")
    else:
        made, native = spec.make(rank, timeout)
    if native is not None:
        return native.PythonBackend(made, rank, size)
    from wiresum.torch.process_group import WiresumProcessGroup

    assert isinstance(made, WiresumBackend)
    return WiresumProcessGroup(spec.store, made)


def create_process_group(backend_options: Any, pg_options: Any = None, *, may_queue: bool = False) -> dist.ProcessGroup:
    """Makes a group that is not registered with `torch.distributed`."""
    made = create_group(backend_options, pg_options, may_queue=may_queue)
    if isinstance(made, dist.ProcessGroup):
        return made
    rank, size = backend_options.group_rank, backend_options.group_size
    return group_of(made, dist.ProcessGroup.BackendType.CUSTOM, backend_options.store, rank, size)


@dataclass(frozen=True, kw_only=True)
class GroupSpec:
    """What a member's backend is made from. When a group's members change, each that goes on makes another backend."""

    store: Store
    group: Group
    subgroup: str
    """The group's name; "" for the default group."""
    may_refuse: bool
    """See `_join`."""
    options: Options
    contact: Contact

    def make(
        self, rank: int, timeout: timedelta, *, patience: timedelta | None = None, ending: str = ""
    ) -> tuple[WiresumBackend, ModuleType | None]:
        """Makes the backend, and returns it with the extension, if all members have it. A group's timeout also limits
        how long its creation may take, unless `patience` is given. `ending`: see `_job_name`."""
        native = extension.load()  # compiling may take a while, so it comes before members wait for each other
        ranks, patience = self.group.ranks, patience or timeout
        size = len(ranks)
        config = replace(
            self.options.config(),
            join_timeout_s=min(patience.total_seconds(), JOIN_TIMEOUT_S_MAX),
            global_rank=ranks[rank],
        )
        _generations[self.subgroup] += 1
        name = _job_name(config, self.subgroup, ending or _ending_of(_generations[self.subgroup]))
        local = ""
        if rank == 0 and config.switch == LOCAL:
            local = own_switch.endpoint() if size > 1 else own_switch.HOST  # one worker alone needs no switch
            config = replace(config, switch=local, tls="")
        home = fallback.reserve(config) if rank == 0 and size > 1 else None
        try:
            goes_on_at = home.endpoint if home is not None else config.fallback
            offered = _Offer(name, len(config.aggregators), goes_on_at, local, host_id().hex())
            store, offer = _meet(self.store, rank, self.group, offered, patience)
            config = _at_local_switch(config, offer, rank, self.group)
            _job_names[self.subgroup] = job = offer.job
            config = _with_fallback(config, offer.fallback)
            session = _join(config, store, job, rank, self.group, may_refuse=self.may_refuse) if size > 1 else None
        finally:
            if home is not None:
                home.give_back()
        try:
            native, cuts = _agree(native, store, rank, self.group)
            device = device_of(config)
            kind = ProcessGroupGloo if native is not None else PlainGloo
            made = make_gloo(PrefixStore("gloo", store), rank, size, patience, device, kind)
            gloo = Gloo(made, device, self.store, rank, size, self.group.named(rank))
            gloo.timeout = timeout
            if session is not None:
                its_gloo = weakref.proxy(gloo)  # weak, since Gloo holds the network
                gloo.network = Network(
                    session,
                    store,
                    bits=config.bits,
                    fixed_scale=self.options.fixed_scale,
                    timeout=lambda: its_gloo.timeout,
                    on_failure=partial(Gloo.end_pending, its_gloo),
                    group=self.group,
                    cuts=cuts,
                    direct=_direct(native, session, cuts) if native is not None else None,
                )
                gloo.network.meet(timeout)
            return WiresumBackend(rank, size, gloo=gloo, network=gloo.network, spec=self), native
        except BaseException as error:
            if session is not None:
                if isinstance(error, RuntimeError):  # Gloo's error does not say who was lost
                    sleep_until(lambda: session.failure is not None, time.monotonic() + waits.CAUSE_S)
                failure = session.failure
                session.abort(f"{self.group.named(rank)} joined, but could not set up its process group: {error}")
                session.close()
                if failure is not None and isinstance(error, RuntimeError):
                    raise as_torch_error(failure) from failure
            raise

    def part(self, store: Store, ranks: list[int], name: str, rank: int, timeout: timedelta) -> WiresumBackend:
        """For `split`: makes the backend of some `ranks`, among which this member's is `rank`."""
        subgroup = f"{name}.{'-'.join(map(str, ranks))}"  # all parts of a split may have the same name
        group = Group(name, "undefined", [self.group.ranks[member] for member in ranks])
        own = ranks.index(rank)
        contact = Contact(group.ranks[own], self.options)
        store = PrefixStore(subgroup, store)
        part = replace(self, store=store, group=group, subgroup=subgroup, may_refuse=True, contact=contact)
        return part.make(own, timeout)[0]

    def changed(self, pg_options: object) -> GroupSpec:
        """Returns this spec, with other options if there are any."""
        return self if pg_options is None else replace(self, options=checked(pg_options))

    def rest(self, ranks: list[int], rank: int, timeout: timedelta) -> WiresumBackend:
        """For `shrink`: makes the backend of the `ranks` that go on, among which this member's is `rank`."""
        # Members that exclude others than this one never meet it: both sides time out, and say for whom they waited.
        store = PrefixStore(f"rest/{'-'.join(map(str, ranks))}", self.store)
        old = self.group
        group = Group(old.name, f"{old.description}:shrunk", [old.ranks[member] for member in ranks])
        ends = "which ends with the process that has it (rank 0, or the torchrun that has started rank 0),"
        with naming_store(old.named(rank), f"the group's store, {ends}"):
            spec = replace(self, store=store, group=group)
            # Members that go on wait for each other less long than at a start.
            return spec.make(ranks.index(rank), timeout, patience=min(timeout, REST_TIMEOUT))[0]

    @property
    def handle(self) -> str:
        """The others find this member by it when the group is reconfigured."""
        return str(self.contact.handle)

    def reconfigured(self, opts: Any, before: WiresumBackend | Unconnected) -> WiresumBackend:
        """For `reconfigure`: makes the backend of the members whose handles are given, who all call it. This member
        leaves the job that it has had `before`, unless the handles cannot be right."""
        contact = self.contact
        with contact.reconfiguring(opts) as members:
            rank = members.index(contact.handle)
            patience = opts.timeout or before.timeout
            before.shutdown()
            ranks = [member.rank for member in members]
            if len(set(ranks)) < len(ranks):  # their programs began apart from each other
                ranks = list(range(len(ranks)))
            group = self.group._replace(ranks=ranks)
            first = members[0]
            with naming_store(group.named(rank), f"the store of the new rank 0, {first.host}:{first.port},"):
                store = PrefixStore(f"{opts.uuid}", contact.store_of(first, patience))
                spec = replace(self, store=store, group=group)
                # Members may have seen different numbers of groups, so the name's ending is a random one.
                return spec.make(rank, before.timeout, patience=patience, ending=f"-{secrets.token_hex(4)}")[0]


class _Offer(NamedTuple):
    """What rank 0 tells the other members."""

    job: str
    aggregators: int
    """How many aggregators its WIRESUM_SWITCH names."""
    fallback: str
    """The service to go on at, as in WIRESUM_FALLBACK."""
    local: str
    """Endpoint of the switch that rank 0 started for WIRESUM_SWITCH=local; empty without one."""
    host: str
    """Rank 0's host, in hexadecimal."""


def _at_local_switch(config: AgentConfig, offer: _Offer, rank: int, group: Group) -> AgentConfig:
    """The configuration with the switch that rank 0 has started, if WIRESUM_SWITCH asks for one."""
    if rank == 0 or (config.switch != LOCAL and not offer.local):
        return config
    if config.switch != LOCAL or not offer.local:
        at, other = (0, rank) if offer.local else (rank, 0)
        raise ValueError(
            f"WIRESUM_SWITCH is `local` at {group.named(at)}, and not at {group.named(other)}: it must be the same at "
            "all workers"
        )
    if offer.host != host_id().hex():
        raise ValueError(
            f"WIRESUM_SWITCH=local is for workers of one host, and {group.named(rank)} is on another than "
            f"{group.named(0)}: start a switch (`wiresum switch --help`), and name it in WIRESUM_SWITCH"
        )
    own_switch.know(offer.local)
    return replace(config, switch=offer.local, tls="")


def _with_fallback(config: AgentConfig, agreed: str) -> AgentConfig:
    """The configuration with rank 0's fallback, if this worker can go on there."""
    return replace(config, fallback=agreed if replace(config, fallback=AUTO).may_fall_back else OFF)


def _meet(store: Store, rank: int, group: Group, offered: _Offer, timeout: timedelta) -> tuple[Store, _Offer]:
    """Finds the other members. Returns a part of the store that only they use, and rank 0's offer. Raises a
    `WiresumTimeoutError` that names missing members, and a `ValueError` if rank 0 has a different number of
    aggregators.

    A store may hold values of earlier groups of the same name: torchrun's survives a restart of the workers. To act on
    no old value, each member asks a fresh question, and rank 0 answers until the member has the answer.
    """
    if rank == 0:
        meeting, offer = secrets.token_hex(8), offered
        answer = json.dumps([meeting, *offer])
        _answer_members(store, group, answer, f"heard/{meeting}", timeout)
    else:
        question = secrets.token_hex(8)
        store.set(f"question/{rank}", question)
        try:
            store.wait([f"answer/{question}"], timeout)
        except dist.DistStoreError as error:
            raise _missed(rank, [0], group, timeout) from error
        meeting, *values = json.loads(store.get(f"answer/{question}").decode())
        offer = _Offer(*values)
        store.set(f"heard/{meeting}/{rank}", "")
        if offer.aggregators != offered.aggregators:
            raise ValueError(
                f"WIRESUM_SWITCH names {offered.aggregators} aggregators at {group.named(rank)} and "
                f"{offer.aggregators} at {group.named(0)}: it must be the same at all workers"
            )
    return PrefixStore(f"meeting/{meeting}", store), offer


def _answer_members(store: Store, group: Group, answer: str, heard: str, timeout: timedelta) -> None:
    deadline = time.monotonic() + timeout.total_seconds()
    missing = set(range(1, len(group.ranks)))
    while missing:
        for member in sorted(missing):
            if store.check([f"{heard}/{member}"]):
                missing.discard(member)
            elif store.check([f"question/{member}"]):
                store.set(f"answer/{store.get(f'question/{member}').decode()}", answer)
        if missing and time.monotonic() > deadline:
            raise _missed(0, sorted(missing), group, timeout)
        if missing:
            time.sleep(MEETING_POLL_S)


def _missed(rank: int, missing: Sequence[int], group: Group, timeout: timedelta) -> WiresumTimeoutError:
    return WiresumTimeoutError(
        f"{group.named(rank)} waited {timeout.total_seconds():.0f} s for {group.named(*missing)} to make a process "
        f"group of {len(group.ranks)}. See their logs for the reason"
    )


def _ending_of(generation: int) -> str:
    return f"-{generation}" if generation > 1 else ""


def _job_name(config: AgentConfig, subgroup: str, ending: str) -> str:
    """A job name of its own for each group, each restart by torchrun, and, by its `ending`, each time a group is made,
    since earlier jobs may not have ended yet."""
    if subgroup and "" in _job_names:
        name = _job_names[""]
    else:
        name = config.job or f"{_name_of_run()}-{secrets.token_hex(4)}"
        if (restart := os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) != "0":
            name += f"-restart{restart}"
    if subgroup:
        name += f".{subgroup}"
    name += ending
    if not name_problem(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    legible = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip("-")
    return f"{legible[: JOB_NAME_BYTES_MAX - len(digest) - 1]}-{digest}"


def _name_of_run() -> str:
    """A name that users recognise: the one of Slurm's job, or of torchrun's run."""
    if slurm := os.environ.get("SLURM_JOB_ID"):
        return f"slurm-{slurm}"
    run = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return "job" if run == "none" else run


def _join(config: AgentConfig, store: Store, job: str, rank: int, group: Group, *, may_refuse: bool) -> Session | None:
    """Joins the job. Returns None, at all members, if the switch has no free lease and the group `may_refuse`."""
    session: Session | None = None
    cause: Exception | None = None
    try:
        admission = Admission.FURTHER if may_refuse else Admission.QUEUE
        session = Session.join(config, job_name=job, rank=rank, world_size=len(group.ranks), admission=admission)
    except Exception as error:
        cause = error
    with contextlib.ExitStack() as cleanup:
        if session is not None:
            cleanup.callback(session.close)
        if may_refuse and not _all_joined(store, rank, group, job, cause):
            return None
        if cause is not None:
            raise as_torch_error(cause) if isinstance(cause, WiresumError) else cause
        cleanup.pop_all()
        return session


def _agree(native: ModuleType | None, store: Store, rank: int, group: Group) -> tuple[ModuleType | None, bool]:
    """Returns the extension, or None if a member lacks it, and True if a member has an accelerator: then all members
    cut long collectives (pieces.py). Members that have the extension would otherwise wait for the others when PyTorch
    connects its wrapper and the group's other backends."""
    if torch.accelerator.is_available():
        store.set("accelerator", "")
    if native is None:
        store.set("without/name", group.named(rank))
    if store.add("without/asked", 1) == len(group.ranks):  # all members have said by now
        store.set("without", store.get("without/name").decode() if store.check(["without/name"]) else "")
    without = store.get("without").decode()
    if native is not None and without and rank == 0:
        log.warning(
            "wiresum: %s has no C++ part of the backend, and its log says why: all ranks of this group do without",
            without,
        )
    return None if without else native, store.check(["accelerator"])


def _direct(native: ModuleType, session: Session, cuts: bool) -> Any:
    """The group's DirectCalls, which leave calls that are to be cut to Python."""
    return native.DirectCalls(session.native, session.rank, KEPT, WHOLE_BYTES_MAX if cuts else 2**63)


def _outcome(cause: Exception | None) -> str:
    if cause is None:
        return _JOINED
    no_room = isinstance(cause, JoinError) and cause.code == "RESOURCE_EXHAUSTED"
    return f"{_REFUSED if no_room else _FAILED}{cause}"


def _all_joined(store: Store, rank: int, group: Group, job: str, cause: Exception | None) -> bool:
    """Tells the others how joining went here. Returns False if the switch refused a member. All members see the same
    outcomes, so they decide the same. Raises another member's failure, if this one has none."""
    store.set(f"outcome/{rank}", _outcome(cause))
    outcomes = [store.get(f"outcome/{member}").decode() for member in range(len(group.ranks))]
    refusals = [text for text in outcomes if text.startswith(_REFUSED)]
    if refusals:
        if rank == 0:
            _no_room.add(job, refusals[0].removeprefix(_REFUSED))
        return False
    for member, text in enumerate(outcomes):
        if cause is None and text.startswith(_FAILED):
            raise dist.DistBackendError(
                f"{group.named(member)} could not join job '{job}': {text.removeprefix(_FAILED)}"
            )
    return True
