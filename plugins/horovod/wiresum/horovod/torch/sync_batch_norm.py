"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

import torch
from torch import nn

from wiresum.horovod.torch.mpi_ops import Sum, allreduce
from wiresum.horovod.torch.process_sets import ProcessSet, global_process_set


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation whose mean and variance, in training, are of all ranks' inputs together. Ranks may have
    different batch sizes.

    Gradients flow through the all-reduced sums, so the backward pass needs no code. The variance is a second sum, of
    squared distances from the mean: a sum of squares would lose digits. Half-precision batches are normalised in
    float32, since sums over a batch exceed float16.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self._process_set = process_set

    def _check_input_dim(self, batch: torch.Tensor) -> None:
        if batch.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {batch.dim()}D input)")

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(batch)
        if not self.training and self.track_running_stats:
            return super().forward(batch)
        values = batch.to(torch.promote_types(batch.dtype, torch.float32))
        axes = [axis for axis in range(batch.dim()) if axis != 1]
        count = torch.full((1,), float(batch.numel() // batch.shape[1]), dtype=values.dtype, device=batch.device)
        sums = allreduce(torch.cat([values.sum(axes), count]), op=Sum, process_set=self._process_set)
        total = sums[-1].detach()
        mean = sums[:-1] / total
        shape = [1, -1, *[1] * (batch.dim() - 2)]
        distance = values - mean.reshape(shape)
        variance = allreduce(distance.square().sum(axes), op=Sum, process_set=self._process_set) / total
        if self.track_running_stats:
            self._track(mean.detach(), variance.detach(), float(total))
        normal = distance * torch.rsqrt(variance + self.eps).reshape(shape)
        if self.affine:
            normal = normal * self.weight.reshape(shape) + self.bias.reshape(shape)
        return normal.to(batch.dtype)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor, total: float) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        rate = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        # Unlike lerp_, add_ takes statistics of another type than the buffers'.
        self.running_mean.add_(mean - self.running_mean, alpha=rate)
        self.running_var.add_(variance * (total / max(total - 1, 1)) - self.running_var, alpha=rate)
