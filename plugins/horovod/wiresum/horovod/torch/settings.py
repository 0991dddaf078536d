"""The environment variables of Horovod that are supported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

FUSION_BYTES_MAX = 128 * 1024 * 1024
STALL_CHECK_S = 60.0
STALL_SHUTDOWN_S = 1800.0


@dataclass(frozen=True)
class Settings:
    fusion_bytes_max: int = FUSION_BYTES_MAX
    """HOROVOD_FUSION_THRESHOLD: how many bytes of tensors are fused into one collective. Rank 0's value counts."""
    stall_check_s: float = STALL_CHECK_S
    """HOROVOD_STALL_CHECK_TIME_SECONDS: how long a request may wait before a warning."""
    stall_shutdown_s: float = STALL_SHUTDOWN_S
    """HOROVOD_STALL_SHUTDOWN_TIME_SECONDS: how long a request may wait before the job fails. 0, Horovod's default,
    means for ever."""

    @property
    def stall_poll_s(self) -> float:
        """How often to check for stalls."""
        return min(self.stall_check_s, self.stall_shutdown_s)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Reads the variables. Raises a `ValueError` that names a wrong one."""
        check_s = _number(environ, "HOROVOD_STALL_CHECK_TIME_SECONDS", STALL_CHECK_S)
        if environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0"):
            check_s = float("inf")
        return cls(
            fusion_bytes_max=int(_number(environ, "HOROVOD_FUSION_THRESHOLD", FUSION_BYTES_MAX)),
            stall_check_s=check_s or float("inf"),
            stall_shutdown_s=_number(environ, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", STALL_SHUTDOWN_S) or float("inf"),
        )


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "")
    try:
        value = float(text) if text else float(default)
    except ValueError:
        value = -1.0
    if value < 0:
        raise ValueError(f"{name} is {text!r}: it must be a number, 0 or more")
    return value
