import enum
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

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
    NO_MEMORY = 4

# Compressed gradients (stochastic.hpp, selection.hpp and indices.hpp in host_agent/src/numeric). Arrays are contiguous;
# the last one is written to.
Draw: TypeAlias = tuple[int, int, int, int, int]  # the key's two words, worker, step, stream
_Floats: TypeAlias = npt.NDArray[np.floating[Any]]
_Int32s: TypeAlias = npt.NDArray[np.int32]
_Indices: TypeAlias = npt.NDArray[np.int64]
_Words: TypeAlias = npt.NDArray[np.uint32]

def random_words(draw: Draw, first: int, words: _Words) -> None: ...
def round_stochastically(
    draw: Draw, source: _Floats, inverses: npt.NDArray[np.float64], block: int, limit: int, integers: _Int32s
) -> None: ...
def scale_integers(integers: _Int32s, factors: npt.NDArray[np.float64], block: int, values: _Floats) -> None: ...
def pack_lanes(lane_bits: int, integers: _Int32s, words: _Words) -> None: ...
def unpack_lanes(lane_bits: int, words: _Words, integers: _Int32s) -> None: ...
def square_distance(a: _Floats, b: _Floats) -> float: ...
def largest(source: _Floats | _Int32s, indices: _Indices) -> None: ...
def encode_indices(indices: _Indices, size: int, code: npt.NDArray[np.uint8]) -> None: ...
def decode_indices(code: npt.NDArray[np.uint8], size: int, indices: _Indices) -> None: ...
def unite_indices(parts: Sequence[_Indices], size: int, indices: _Indices) -> int: ...
def find_places(indices: _Indices, others: _Indices, places: _Indices) -> None: ...
def instruction_set() -> str: ...
def path_mtu(local: str, remote: str) -> int: ...
def source_address(remote: str) -> str: ...
def try_transport(transport: str, device: str, address: str, threads: int) -> str: ...

class Ports:
    def __init__(self, address: str, count: int, within: tuple[int, int]) -> None: ...
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

class Aggregator:
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
        threads: int,
        own_address: str,
        switch_address: str,
        switch_port: int,
        group_address: str,
        group_port: int,
    ) -> None: ...

class Form:
    def __init__(
        self,
        *,
        dtype: Dtype,
        lane_bits: int,
        scaling: Scaling,
        fixed_scale: float,
        divisor: float,
        signature: int,
        may_be_sparse: bool,
    ) -> None: ...

CAPI: object  # a capsule, for native code: capi.hpp

class Session:
    def __init__(
        self,
        aggregators: Sequence[Aggregator],
        *,
        rank: int,
        spin_s: float,
        offload: bool,
        transport: str,
        device: str,
        exact_elements_max: int,
    ) -> None: ...
    def submit(
        self,
        regions: Sequence[tuple[int, int, int]],
        form: Form,
        *,
        timeout_s: float,
        notify: bool,
    ) -> Operation: ...
    def take_completed(self, timeout_s: float) -> list[Operation]: ...
    def notify(self, operation: Operation) -> None: ...
    @property
    def failed(self) -> Operation | None: ...
    @property
    def standing(self) -> tuple[int, int]: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...

class Greeting:
    def __init__(self, session: Session, timeout_ns: int) -> None: ...
    @property
    def operation(self) -> Operation: ...
    def wrong(self) -> tuple[int, int] | None: ...
