"""Trains a small transformer with AdamW, to the same weights by any number of workers (docs/reproducible.md).

WIRESUM_SWITCH=... torchrun --nproc-per-node 4 reproducible.py --until 300

Goes on from --checkpoint if that is there, also with another number of workers, and prints the hash at the end. With
--ddp, DistributedDataParallel averages the same micro-batches instead. With --record, every step's hashes are written
to a file, for `python -m wiresum.torch.fingerprints FILE FILE`.
"""

import argparse
import contextlib
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wiresum.torch
from wiresum.torch.fingerprints import Log

TOKENS = 64
LENGTH = 32
SEQUENCES = 4
"""Sequences in a micro-batch."""


class Transformer(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        self.places = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.scores = nn.Linear(width, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens) + self.places.weight
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        scores: torch.Tensor = self.scores(self.layers(hidden, mask=mask, is_causal=True))
        return scores


def micro_batch(step: int, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences that follow a rule, with noise. They depend on the micro-batch, not on the worker."""
    random = torch.Generator().manual_seed(1_000_003 * step + index)
    tokens = torch.randint(0, TOKENS, (SEQUENCES, LENGTH + 1), generator=random)
    ruled = torch.rand(SEQUENCES, LENGTH + 1, generator=random) < 0.8
    for place in range(2, LENGTH + 1):
        rule = (3 * tokens[:, place - 1] + 5 * tokens[:, place - 2] + 1) % TOKENS
        tokens[:, place] = torch.where(ruled[:, place], rule, tokens[:, place])
    return tokens[:, :-1], tokens[:, 1:]


def backward(model: nn.Module, step: int, index: int, weight: float = 1.0) -> float:
    inputs, targets = micro_batch(step, index)
    torch.manual_seed(1_000_003 * step + index)  # dropout, too, belongs to the micro-batch
    loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    (weight * loss).backward()
    return loss.item()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="wiresum")
    parser.add_argument("--until", type=int, default=300, metavar="STEP")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--words", type=int, default=1, help="of each gradient element; 0: exact means")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--ddp", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    module = Transformer(options.width, options.layers)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    first = 0
    if options.checkpoint and options.checkpoint.exists():
        saved = torch.load(options.checkpoint)
        module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    model: nn.Module = module
    sums = None
    mine = range(options.microbatches * rank // size, options.microbatches * (rank + 1) // size)
    if options.ddp:
        model = DistributedDataParallel(module)
    else:
        sums = wiresum.torch.reproducible(module, options.microbatches, words=options.words or None)  # the one line
        mine = sums.mine()
    log = Log(options.record) if options.record and rank == 0 else None

    began = time.monotonic()
    for step in range(first, options.until):
        optimizer.zero_grad()
        for index in mine:
            last = index == mine[-1]
            with (
                model.no_sync() if isinstance(model, DistributedDataParallel) and not last else contextlib.nullcontext()
            ):
                loss = backward(model, step, index, 1.0 if sums else size / options.microbatches)
        if sums:
            sums.reduce()
        optimizer.step()
        if log:
            log.write(step + 1, module, optimizer)
        if rank == 0 and (step % 50 == 49 or step + 1 == options.until):
            print(f"step {step + 1}: loss {loss:.4f}", flush=True)
    if rank == 0:
        seconds = time.monotonic() - began
        if options.checkpoint:
            state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": options.until}
            torch.save(state, options.checkpoint)
        print(f"{size} workers, {seconds:.1f} s: {wiresum.torch.fingerprint(module, optimizer)}", flush=True)
    # DDP goes before the group. If it were the last to hold the group, it would keep the interpreter's lock while it
    # waits for Gloo's threads, and one of these may need that lock to end (PyTorch 2.13).
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
