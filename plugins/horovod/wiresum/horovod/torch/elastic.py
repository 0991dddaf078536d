"""Refuses Horovod's elastic training, since jobs at the switch have a fixed number of workers."""

from __future__ import annotations

from typing import Any, NoReturn

_WHY = (
    "wiresum.horovod.torch does not do elastic training: a job at the switch has a fixed number of workers. Save "
    "checkpoints, and let torchrun restart the job (torchrun --max-restarts): it joins the switch again as a new job"
)


def run(func: Any) -> NoReturn:
    raise NotImplementedError(_WHY)


class State:
    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(_WHY)


class TorchState(State):
    pass


class ElasticSampler(State):
    pass
