import enum
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from wiresum.agent.errors import WiresumError

class Dtype(enum.Enum):
    F32 = 0
    F16 = 1
    BF16 = 2
    E4M3 = 3
    E5M2 = 4
    I32 = 5
    RAW = 6

class Element(enum.Enum):
    F64 = 0
    F32 = 1
    F16 = 2
    BF16 = 3
    I64 = 4
    I32 = 5
    I8 = 6
    U8 = 7
    BOOL = 8

class Operator(enum.Enum):
    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    BAND = 4
    BOR = 5
    BXOR = 6

class Scaling(enum.Enum):
    NONE = 0
    BLOCK_EXPONENT = 1
    FIXED = 2

# Compressed gradients (stochastic.hpp, selection.hpp and indices.hpp in host_agent/src/numeric). Arrays are contiguous;
# the last one is written to.
Draw: TypeAlias = tuple[int, int, int, int, int]  # the key's two words, worker, step, stream
_Floats: TypeAlias = npt.NDArray[np.floating[Any]]
_Int32s: TypeAlias = npt.NDArray[np.int32]
_Indices: TypeAlias = npt.NDArray[np.int64]
_Words: TypeAlias = npt.NDArray[np.uint32]
_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Singles: TypeAlias = npt.NDArray[np.float32]

class DefaultFloats:
    """In a `with` statement the calling thread rounds to nearest, and has subnormals, whatever its modes were."""

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

def random_words(draw: Draw, first: int, words: _Words) -> None: ...
def round_stochastically(
    draw: Draw, source: _Floats, inverses: npt.NDArray[np.float64], block: int, limit: int, integers: _Int32s
) -> None: ...
def scale_integers(integers: _Int32s, factors: npt.NDArray[np.float64], block: int, values: _Floats) -> None: ...
def pack_lanes(bits: int, integers: _Int32s, words: _Words) -> None: ...
def unpack_lanes(bits: int, words: _Words, integers: _Int32s) -> None: ...
def square_distance(a: _Floats, b: _Floats) -> float: ...
def largest(source: _Floats | _Int32s, indices: _Indices) -> None: ...
def index_code_bytes(count: int, size: int) -> int: ...
def encode_indices(indices: _Indices, size: int, code: npt.NDArray[np.uint8]) -> None: ...
def decode_indices(code: npt.NDArray[np.uint8], size: int, indices: _Indices) -> None: ...
def unite_indices(parts: Sequence[_Indices], size: int, indices: _Indices) -> int: ...
def find_places(indices: _Indices, others: _Indices, places: _Indices) -> None: ...

class DigitSums:
    """host_agent/src/numeric/digit_sums.hpp, over arrays of the caller's. Raises ValueError if one has a wrong size."""

    BLOCK: int
    PARTS_MAX: int

    def __init__(self, parts: int, words: int) -> None: ...
    @property
    def exact(self) -> bool: ...
    def lanes(self, elements: int) -> int: ...
    def add(self, part: _Singles, ends: _Bytes, depths: _Bytes, lanes: _Int32s) -> bool: ...
    def count_special(self, part: _Singles, counts: _Int32s) -> None: ...
    def packed(self, ends: _Bytes, depths: _Bytes, elements: int) -> int: ...
    def pack(
        self,
        ends: _Bytes,
        depths: _Bytes,
        own_ends: _Bytes,
        own_depths: _Bytes,
        lanes: _Int32s,
        elements: int,
        words: _Int32s,
    ) -> None: ...
    def join(
        self, ends: _Bytes, depths: _Bytes, words: _Int32s, counts: _Int32s, divisor: int, elements: _Singles
    ) -> None: ...

def instruction_set() -> str: ...
def path_mtu(local: str, remote: str) -> int: ...
def source_address(remote: str) -> str: ...
def interface_with(address: str) -> str | None: ...
def try_transport(transport: str, address: str, threads: int) -> str: ...

class Operation:
    """A collective that was submitted. The memory of its regions must stay valid until it is done."""

    @property
    def token(self) -> int:
        """Its own among the session's operations."""
    @property
    def number(self) -> int:
        """The same at all workers, unless they call different collectives: 16 bits, as on the wire."""
    def done(self) -> bool: ...
    @property
    def error(self) -> WiresumError | None:
        """Why it failed; None if it did not. Valid once done."""
    def wait(self, timeout_s: float | None = None) -> None:
        """Waits until it is done. Raises the WiresumError that ended it; TimeoutError if only this wait ran out."""

class Form:
    def __init__(
        self,
        *,
        dtype: Dtype,
        bits: int,
        scaling: Scaling,
        fixed_scale: float,
        divisor: float,
        signature: int,
        may_be_sparse: bool,
        reduction: tuple[Element, Operator] | None,
    ) -> None: ...

CAPI: object  # a capsule, for native code: capi.hpp

class Session:
    """host_agent/src/session/session.hpp."""

    @staticmethod
    def join(membership: Any, job_name: str) -> Session: ...  # a JobMembership, whose module imports this one
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def lanes(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def sparse(self) -> bool: ...
    @property
    def switches(self) -> list[str]: ...
    def submit(
        self,
        regions: Sequence[tuple[int | None, int | None, int]],
        form: Form,
        *,
        timeout_s: float,
        notify: bool,
        caller_waits: bool = False,
    ) -> Operation: ...
    def take_completed(self, timeout_s: float) -> list[Operation]: ...
    def notify(self, operation: Operation) -> None: ...
    @property
    def failure(self) -> WiresumError | None: ...
    @property
    def standing(self) -> tuple[int, int]: ...
    def abort(self, error: WiresumError) -> None: ...
    def leave(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...
