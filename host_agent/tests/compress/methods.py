"""The methods that tests of whole trainings run, by name: a name can be told to a worker process."""

from __future__ import annotations

from wiresum.compress import (
    DIANA,
    QSGD,
    THC,
    Compressor,
    GTopK,
    Identity,
    IntDIANA,
    IntSGD,
    Natural,
    PowerSGD,
    QuantisedRandK,
    RandK,
    RandKPartition,
    RandKSameSeed,
    SignMajority,
    TernGrad,
    Threshold,
    TopK,
)

METHODS: dict[str, Compressor] = {
    "identity": Identity(),
    "DIANA": DIANA(block=64),
    "QSGD": QSGD(block=64),
    "TernGrad": TernGrad(),
    "natural": Natural(),
    "RandK": RandK(0.2, memory="diana"),
    "RandK, same seed": RandKSameSeed(0.2, memory="diana"),
    "RandK, partition": RandKPartition(memory="diana"),
    "quantised RandK": QuantisedRandK(0.3),
    "TopK": TopK(0.1),
    "TopK, EF21": TopK(0.1, memory="ef21"),
    "threshold": Threshold(0.01),
    "sign majority": SignMajority(),
    "IntSGD": IntSGD(16),
    "IntDIANA": IntDIANA(8),
    "PowerSGD": PowerSGD(1),
    "THC": THC(),
    "gTop-k": GTopK(0.1),
    "gTop-k, tree": GTopK(0.1, mode="tree"),
    "TopK, quantised down": TopK(0.1, down=QSGD(block=64)),
}
