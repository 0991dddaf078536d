"""The host agent: what a worker needs to take part in a job. `Session.join` is where to start."""

from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import (
    CollectiveTimeoutError,
    DivergedError,
    JobAbortedError,
    JoinError,
    SessionClosedError,
    SwitchUnreachableError,
    WiresumError,
    WorkerLostError,
)
from wiresum.agent.session import Dtype, Operation, Region, Scaling, Session, SessionStats, SparseStats

__all__ = [
    "AgentConfig",
    "CollectiveTimeoutError",
    "DivergedError",
    "Dtype",
    "JobAbortedError",
    "JoinError",
    "Operation",
    "Region",
    "Scaling",
    "Session",
    "SessionClosedError",
    "SessionStats",
    "SparseStats",
    "SwitchUnreachableError",
    "WiresumError",
    "WorkerLostError",
]
