from collections.abc import Sequence
from enum import Enum

class Dtype(Enum):
    F32 = 0
    F16 = 1
    BF16 = 2
    I32 = 3
    RAW = 4

class Scaling(Enum):
    NONE = 0
    BLOCK_EXPONENT = 1
    FIXED = 2

class Link:
    loss: float
    duplicate: float
    reorder: float
    reorder_ns_max: int
    delay_ns: int
    jitter_ns: int
    rate_bps: float
    queue_bytes: int

class Status(Enum):
    OK = 0
    TIMED_OUT = 1
    DIVERGED = 2
    ABORTED = 3
    NO_MEMORY = 4

class FaultKind(Enum):
    ABORT = 0
    CLOSE = 1
    DEATH = 2
    SWITCH_RESTART = 3
    SWITCH_RETURN = 4

class Fault:
    def __init__(self, kind: FaultKind, worker: int, at: int, /) -> None: ...

class Stall:
    def __init__(self, worker: int, begin: int, end: int, /) -> None: ...

class Scenario:
    seed: int
    workers: int
    parents: list[int]
    leaves: list[int]
    threads: int
    lanes: int
    slots: int
    round_first: int
    window_min: int
    window_initial: int
    collectives_max: int
    rto_min: int  # nanoseconds
    sparse_chunks_min: int
    interruption_max: int
    task_max: int
    device_delay_max: int
    device_packets: int
    vote_lag_chunks: int
    exact_elements_max: int
    time_max: int
    up: Link
    down: Link
    stalls: list[Stall]
    faults: list[Fault]

class SparseStats:
    prologues: int
    streams: int
    whole: int
    refined: int
    refinements: int
    blocks_skipped: int
    blocks_empty: int
    bytes_saved: int

class Report:
    finished: bool
    failure: str
    time_ns: int
    packets_sent: int
    bytes_sent: int
    retransmissions: int
    questions: int
    results: list[list[Status | None]]
    duplicates: int
    rejected: int
    link_packets: int
    link_lost: int
    link_overflow: int
    sparse: list[SparseStats]

class Job:
    def __init__(self, scenario: Scenario, /) -> None: ...
    def add(
        self,
        dtype: Dtype,
        scaling: Scaling,
        bits: int,
        fixed_scale: float,
        divisor: float,
        may_be_sparse: bool,
        signature: int,
        regions: Sequence[Sequence[tuple[int, int, int]]],
        submit_at: Sequence[int],
        timeout: int | None = None,
    ) -> None: ...
    def run(self) -> Report: ...

def run_together(jobs: Sequence[Job], follows: Sequence[int | None]) -> list[Report]: ...
