import enum
from collections.abc import Sequence
from typing import Any

LANES_MAX: int
WORKERS_MAX: int
THREADS_MAX: int
HEADER_BYTES: int
WIRE_VERSION: int

class Dtype(enum.Enum):
    F32 = 0
    F16 = 1
    BF16 = 2
    I32 = 3
    RAW = 4

class Scaling(enum.Enum):
    NONE = 0
    BLOCK_EXPONENT = 1
    FIXED = 2

class Status(enum.Enum):
    OK = 0
    TIMED_OUT = 1
    DIVERGED = 2
    ABORTED = 3

def instruction_set() -> str: ...
def path_mtu(local: str, remote: str) -> int: ...
def source_address(remote: str) -> str: ...

class Ports:
    def __init__(self, address: str, count: int) -> None: ...
    @property
    def base_port(self) -> int: ...

class Operation:
    @property
    def token(self) -> int: ...
    @property
    def tensor(self) -> int: ...
    @property
    def done(self) -> bool: ...
    @property
    def status(self) -> Status: ...
    def wait(self, timeout_s: float) -> bool: ...

class Session:
    def __init__(
        self,
        *,
        ports: Ports,
        job: int,
        key: int,
        worker: int,
        workers: int,
        lanes: int,
        slots: int,
        round_first: int,
        threads: int,
        switch_address: str,
        switch_port: int,
        spin_s: float,
        offload: bool,
    ) -> None: ...
    def submit(
        self,
        regions: Sequence[tuple[int, int, int]],
        *,
        dtype: Dtype,
        lane_bits: int,
        scaling: Scaling,
        fixed_scale: float,
        divisor: float,
        signature: int,
        may_be_sparse: bool,
        timeout_s: float,
        notify: bool,
    ) -> Operation: ...
    def take_completed(self, timeout_s: float) -> list[Operation]: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...
