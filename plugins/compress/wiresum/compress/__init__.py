"""Compressed communication: DIANA, IntSGD, PowerSGD, Top-k and others.

A method is a small immutable object. `attach` makes DistributedDataParallel use one (ddp_hook.py), and an `Engine` runs
one without PyTorch. docs/compress.md helps to choose one, or to write another.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wiresum.compress.aggregator import Aggregator, InProcess, Traffic
from wiresum.compress.arrays import Sparse
from wiresum.compress.blocks import BlockRandomK, BlockSparsifier, BlockThreshold, BlockTopK, BlockTopKRatio
from wiresum.compress.compressor import (
    Batch,
    Compressor,
    GatherCompressor,
    IntegerCompressor,
    Outcome,
    SparseCompressor,
    Trait,
)
from wiresum.compress.engine import Engine
from wiresum.compress.gtopk import GTopK
from wiresum.compress.integer import IntDIANA, IntSGD
from wiresum.compress.memory import ErrorFeedback, Memory, MomentumCorrection, NoMemory, Shift
from wiresum.compress.natural import Identity, Natural, SignMajority
from wiresum.compress.powersgd import PowerSGD
from wiresum.compress.quantise import DIANA, QSGD, Quantiser, TernGrad
from wiresum.compress.ratio import WarmUp
from wiresum.compress.segment import Piece, Segment
from wiresum.compress.sparse import (
    AdaptiveThreshold,
    OwnScale,
    QuantisedRandK,
    RandK,
    RandKPartition,
    RandKSameSeed,
    Threshold,
    TopK,
)
from wiresum.compress.turn import Turn

if TYPE_CHECKING:
    from wiresum.compress.ddp_hook import Attachment, attach, compression_hook
    from wiresum.compress.groups import GroupAggregator, SwitchAggregator, aggregator_of
    from wiresum.compress.outer import OuterSteps
    from wiresum.compress.training import Report

__all__ = [
    "DIANA",
    "QSGD",
    "AdaptiveThreshold",
    "Aggregator",
    "Attachment",
    "Batch",
    "BlockRandomK",
    "BlockSparsifier",
    "BlockThreshold",
    "BlockTopK",
    "BlockTopKRatio",
    "Compressor",
    "Engine",
    "ErrorFeedback",
    "GTopK",
    "GatherCompressor",
    "GroupAggregator",
    "Identity",
    "InProcess",
    "IntDIANA",
    "IntSGD",
    "IntegerCompressor",
    "Memory",
    "MomentumCorrection",
    "Natural",
    "NoMemory",
    "Outcome",
    "OuterSteps",
    "OwnScale",
    "Piece",
    "PowerSGD",
    "QuantisedRandK",
    "Quantiser",
    "RandK",
    "RandKPartition",
    "RandKSameSeed",
    "Report",
    "Segment",
    "Shift",
    "SignMajority",
    "Sparse",
    "SparseCompressor",
    "SwitchAggregator",
    "TernGrad",
    "Threshold",
    "TopK",
    "Traffic",
    "Trait",
    "Turn",
    "WarmUp",
    "aggregator_of",
    "attach",
    "compression_hook",
]

_NEED_TORCH = {
    **dict.fromkeys(("Attachment", "attach", "compression_hook"), "wiresum.compress.ddp_hook"),
    **dict.fromkeys(("GroupAggregator", "SwitchAggregator", "aggregator_of"), "wiresum.compress.groups"),
    "OuterSteps": "wiresum.compress.outer",
    "Report": "wiresum.compress.training",
}


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        return getattr(import_module(_NEED_TORCH[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
