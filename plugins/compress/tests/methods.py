"""The methods that tests train with, by name, so that a worker process can be told which one to use."""

from __future__ import annotations

import wiresum.compress as wc

METHODS: dict[str, wc.Compressor] = {
    "identity": wc.Identity(),
    "DIANA": wc.DIANA(block=64),
    "QSGD": wc.QSGD(block=64),
    "TernGrad": wc.TernGrad(),
    "natural": wc.Natural(),
    "RandK": wc.RandK(0.2, memory="diana"),
    "RandK, same seed": wc.RandKSameSeed(0.2, memory="diana"),
    "RandK, partition": wc.RandKPartition(memory="diana"),
    "quantised RandK": wc.QuantisedRandK(0.3),
    "TopK": wc.TopK(0.1),
    "TopK, EF21": wc.TopK(0.1, memory="diana"),
    "threshold": wc.Threshold(0.01),
    "adaptive threshold": wc.AdaptiveThreshold(0.3),
    "block top-k": wc.BlockTopK(0.1, block=16),
    "block top-k ratio": wc.BlockTopKRatio(0.1, block=16),
    "block threshold": wc.BlockThreshold(0.05, block=16),
    "block random-k": wc.BlockRandomK(0.1, block=16),
    "gTop-k, momentum corrected": wc.GTopK(wc.WarmUp(0.05, 2, (0.25, 0.1)), memory="momentum-correction"),
    "sign majority": wc.SignMajority(),
    "IntSGD": wc.IntSGD(16),
    "IntDIANA": wc.IntDIANA(8),
    "IntSGD, by estimates": wc.IntSGD(16, scale="estimate"),
    "IntDIANA, by estimates": wc.IntDIANA(8, scale="estimate"),
    "PowerSGD": wc.PowerSGD(1),
    "gTop-k": wc.GTopK(0.1),
    "gTop-k, tree": wc.GTopK(0.1, mode="tree"),
    "TopK, quantised down": wc.TopK(0.1, down=wc.QSGD(block=64)),
}
