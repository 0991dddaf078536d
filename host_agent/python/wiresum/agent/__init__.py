"""The host agent lets a worker take part in a job; `Session.join` is the entry point."""

from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import (
    CollectiveTimeoutError,
    DivergedError,
    ImpossibleSumError,
    JobAbortedError,
    JoinError,
    SessionClosedError,
    SwitchUnreachableError,
    WiresumError,
    WorkerLeftError,
    WorkerLostError,
    WrongSumError,
)
from wiresum.agent.session import Dtype, Operation, Region, Scaling, Session
from wiresum.agent.statistics import AggregatorStats, Moved, SessionStats, SparseStats, TrafficStats

__all__ = [
    "AgentConfig",
    "AggregatorStats",
    "CollectiveTimeoutError",
    "DivergedError",
    "Dtype",
    "ImpossibleSumError",
    "JobAbortedError",
    "JoinError",
    "Moved",
    "Operation",
    "Region",
    "Scaling",
    "Session",
    "SessionClosedError",
    "SessionStats",
    "SparseStats",
    "SwitchUnreachableError",
    "TrafficStats",
    "WiresumError",
    "WorkerLeftError",
    "WorkerLostError",
    "WrongSumError",
]
