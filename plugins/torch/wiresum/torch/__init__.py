"""`torch.distributed` over Wiresum: `init_process_group("wiresum")`.

`Options` are a group's settings, `stats()` its counters, `flight_record()` its newest collectives.
`WiresumTimeoutError` is raised at a time-out. The guide is docs/torch.md. `reproducible` makes gradients the same bits
for any number of workers, and `fingerprint` hashes what came of it (docs/reproducible.md).

PyTorch finds this package by the entry point `torch.backends` and calls `_autoload` at the end of `import torch`, in
every process. So this module imports only PyTorch: the native core, gRPC and the process group are loaded when a group
is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.distributed as dist

    from wiresum.torch.errors import WiresumTimeoutError
    from wiresum.torch.fingerprints import fingerprint
    from wiresum.torch.options import Options
    from wiresum.torch.reproducibility import reproducible
    from wiresum.torch.statistics import GroupStats

__all__ = [
    "BACKEND_NAME",
    "GroupStats",
    "Options",
    "WiresumTimeoutError",
    "fingerprint",
    "flight_record",
    "register",
    "reproducible",
    "stats",
]

BACKEND_NAME = "wiresum"
DEVICES = ("cpu", "cuda", "xpu", "privateuseone")
"""`privateuseone` stands for every device that PyTorch does not know itself, whatever its name."""

_LAZY = {
    "GroupStats": "wiresum.torch.statistics",
    "Options": "wiresum.torch.options",
    "WiresumTimeoutError": "wiresum.torch.errors",
    "fingerprint": "wiresum.torch.fingerprints",
    "reproducible": "wiresum.torch.reproducibility",
}


def register() -> None:
    """Registers the backend with `torch.distributed`, once, if this PyTorch has it."""
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist.Backend, BACKEND_NAME.upper()):
        dist.Backend.register_backend(BACKEND_NAME, _create, extended_api=True, devices=list(DEVICES))


def stats(group: dist.ProcessGroup | None = None) -> GroupStats:
    """Counters of a group of this backend; by default, of the default group."""
    from wiresum.torch.backend import stats_of

    return stats_of(group)


def flight_record() -> bytes:
    """The newest collectives of this process's groups, as PyTorch's flight recorder dumps them."""
    from wiresum.torch.flight_recorder import dump_all

    return dump_all()


def _create(backend_options: Any, pg_options: Any) -> Any:
    from wiresum.torch.creation import create_group

    return create_group(backend_options, pg_options)


def _autoload() -> None:
    """PyTorch calls this entry point. It must not raise: an exception here breaks `import torch`."""
    register()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    if name == "__version__":
        from importlib import metadata

        return metadata.version("wiresum")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


register()
