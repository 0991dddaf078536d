"""Chooses the learning rates of experiment 7 by the accuracy on the validation images.

    python science/wiresum/experiments/rates.py [NAME ...]

Trains each method at several rates, and prints the rate with the highest accuracy, among equals the larger rate. The
test images are not used.
"""

from __future__ import annotations

import sys

import torch

from wiresum.experiments.compressed_training import METHODS, VALIDATION_IMAGES
from wiresum.experiments.dense_sums import granularity_of
from wiresum.experiments.network import convolutional_network, train

FACTORS = (0.5, 1.0, 2.0)
"""Factors of a method's rate in METHODS. If the first or the last is chosen, update METHODS and run again."""
WORKERS, EPOCHS, BATCH = 4, 9, 8
"""The experiment's numbers: a rate that is too large may fail only in the second half."""


def validation_accuracy(name: str, rate: float) -> float:
    return train(
        METHODS[name].compressor,
        workers=WORKERS,
        epochs=EPOCHS,
        rate=rate,
        batch=BATCH,
        granularity=granularity_of(METHODS[name].compressor),
        make=convolutional_network,
        validation=VALIDATION_IMAGES,
    ).validation_accuracy


def main() -> None:
    torch.set_num_threads(1)
    if unknown := set(sys.argv[1:]) - set(METHODS):
        sys.exit(f"there is no method {', '.join(sorted(unknown))}; there are {', '.join(METHODS)}")
    for name in sys.argv[1:] or METHODS:
        accuracies = {METHODS[name].rate * f: validation_accuracy(name, METHODS[name].rate * f) for f in FACTORS}
        chosen = max(accuracies, key=lambda rate: (accuracies[rate], rate))
        shown = [f"{rate:g}: {accuracy:.1f}%" for rate, accuracy in accuracies.items()]
        print(f"{name}: {chosen:g} ({', '.join(shown)})", flush=True)


if __name__ == "__main__":
    main()
