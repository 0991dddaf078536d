"""`pg_options` of `init_process_group` and `new_group`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

from wiresum.agent.config import AgentConfig


@dataclass(frozen=True)
class Options:
    """The settings of one group; None means the environment's value, or the default. `wiresum settings` explains
    settings that have a variable."""

    fixed_scale: float | None = None
    """Factor for floats before they are rounded to integers, instead of block floating point's power of two.

    A fixed scale saves the round trip in which workers agree on exponents. It must be finite, above 0, and the same at
    all workers. Use it only if the range of the values is known: larger values are clamped.
    """
    switch: str | None = None
    tls: str | None = None
    insecure: bool | None = None
    job: str | None = None
    precision: str | None = None
    bits: int | None = None
    check_word: str | None = None
    address: str | None = None
    ports: str | None = None
    share: bool | None = None
    threads: int | None = None
    lanes: int | None = None
    transport: str | None = None
    tenant: str | None = None
    job_token: str | None = field(default=None, repr=False)
    fallback: str | None = None
    slots: int | None = None
    """Chunks in flight, at each aggregator; None: the service decides."""
    sparse: bool | None = None
    """If False, blocks of zeros are sent like others, which saves a round trip. The same at all workers."""

    def __post_init__(self) -> None:
        if self.fixed_scale is not None and not (math.isfinite(self.fixed_scale) and self.fixed_scale > 0):
            raise ValueError(f"fixed_scale is {self.fixed_scale}: it must be a finite number above 0")

    def config(self) -> AgentConfig:
        settings = asdict(self)
        del settings["fixed_scale"]
        return AgentConfig.from_environment(**settings)


def checked(given: object) -> Options:
    """Returns the user's options, which PyTorch hands on, or defaults. Raises TypeError for another backend's
    options."""
    if given is not None and not isinstance(given, Options):
        raise TypeError(f"pg_options of the wiresum backend are a wiresum.torch.Options, not a {type(given)}")
    return given or Options()
