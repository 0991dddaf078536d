"""What `init_process_group(..., pg_options=...)` and `new_group(..., pg_options=...)` may say."""

from __future__ import annotations

from dataclasses import dataclass

from wiresum.agent.config import AgentConfig


@dataclass(frozen=True)
class Options:
    """A field that is None leaves the matter to the environment (`wiresum.agent.config`)."""

    lane_bits: int | None = None
    """Bits on the wire for each float that is summed: 32, 16 or 8. Less is faster and coarser."""
    precision: str | None = None
    """How sums of floats are rounded: "exact" (once, at the end), "block" (to `lane_bits` below the largest element of
    a packet, before they are added), or "auto": exact up to 4,096 elements. The same at all workers."""
    fixed_scale: float | None = None
    """Multiplies floats before they are rounded to integers, in place of block floating point's power of two.

    The same at all workers. It saves the round trip in which workers agree on exponents, and it is for those
    who know the range of their values: what does not fit its lane is clamped.
    """
    sparse: bool | None = None
    """Leave out blocks that are zero at all workers, where that pays (docs/sparse.md)? The same at all workers."""
    switch: str | None = None
    """The control endpoint, host:port, or several of them as in WIRESUM_SWITCH."""
    job: str | None = None
    """The job's name at the switch; rank 0's counts."""

    def config(self) -> AgentConfig:
        return AgentConfig.from_environment(
            lane_bits=self.lane_bits, precision=self.precision, sparse=self.sparse, switch=self.switch, job=self.job
        )
