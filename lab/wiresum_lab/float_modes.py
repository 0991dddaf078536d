"""Floating-point modes that a program may set in its threads, for tests that results do not depend on these modes."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

FLUSH = "flush subnormals"
_ROUNDING = (
    {"down": 0x800000, "up": 0x400000, "zero": 0xC00000}
    if platform.machine() == "aarch64"
    else {"down": 0x400, "up": 0x800, "zero": 0xC00}
)
"""Values of FE_DOWNWARD, FE_UPWARD and FE_TOWARDZERO in fenv.h."""
MODES = (FLUSH, *_ROUNDING)
_libm = ctypes.CDLL("libm.so.6")


@contextmanager
def float_mode(mode: str) -> Iterator[None]:
    """Sets one of MODES in the calling thread, and checks that it is still set in the end."""
    if mode == FLUSH:
        torch.set_flush_denormal(True)
        try:
            yield
            assert _is_flushing(), "the thread's mode was changed"
        finally:
            torch.set_flush_denormal(False)
        return
    before = _libm.fegetround()
    nearest = _sums()
    assert _libm.fesetround(_ROUNDING[mode]) == 0
    try:
        rounded = _sums()
        assert rounded != nearest
        yield
        assert _sums() == rounded, "the thread's mode was changed"
    finally:
        _libm.fesetround(before)


def _sums() -> tuple[float, float, float]:
    one, little = map(float, ("1", "1e-30"))
    return one + little, one - little, little - one


def _is_flushing() -> bool:
    smallest = torch.tensor([2.0**-149, 0.0])
    return bool((smallest * torch.ones(2)).sum() == 0)
