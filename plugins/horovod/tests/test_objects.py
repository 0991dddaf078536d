"""Objects among real ranks: what Horovod's users send, and what somebody sends who is no member of the job."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import wiresum.horovod.torch as hvd
from wiresum.horovod.torch import objects, runtime
from wiresum_lab.ranks.cluster import Cluster, runs_in

from . import horovod_ranks

REFUSED = "rank 1's object was not sent by a member of this job, so it was not unpickled"


class Bomb:
    """Whoever unpickles it makes the file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.file),))


@runs_in("trio")
def test_lambdas_local_classes_and_tensors_arrive(rank: int, size: int) -> None:
    class Local:
        def __init__(self, value: int) -> None:
            self.value = value

        def doubled(self) -> int:
            return 2 * self.value

    received = hvd.broadcast_object((lambda value: value + rank, Local(21)) if rank == 1 else None, root_rank=1)
    assert received[0](5) == 6 and received[1].doubled() == 42
    assert [function() for function in hvd.allgather_object(lambda: 10 * rank)] == [0, 10, 20]
    whole = torch.arange(4.0)
    parts = hvd.broadcast_object((whole, whole[1:], whole.to_sparse(), whole.to(torch.bfloat16)))
    parts[0][1] = 9.0
    assert parts[1][0] == 9.0  # the parts share their memory, as before
    assert parts[2].is_sparse and parts[3].dtype is torch.bfloat16


@runs_in("trio")
def test_objects_go_round_in_a_process_set(rank: int, size: int) -> None:
    outer = hvd.add_process_set([0, 2])
    if rank != 1:
        assert hvd.broadcast_object(f"of {rank}", root_rank=2, process_set=outer) == "of 2"
        assert hvd.allgather_object(rank, process_set=outer) == [0, 2]
        with pytest.raises(ValueError, match="invalid root rank 1"):
            hvd.broadcast_object("x", root_rank=1, process_set=outer)
    hvd.remove_process_set(outer)


def sends_bombs(rank: int, size: int, folder: str) -> None:
    """Rank 1 stands for somebody who writes into the data path: it knows all but the job's secret, which no packet
    has."""
    horovod_ranks.begin(rank, size)
    mark = Path(folder, f"made by rank {rank}")
    if rank == 1:
        with pytest.raises(FileNotFoundError):
            pickle.loads(pickle.dumps(Bomb(Path(folder, "no such folder", "x"))))  # the bomb does go off
        guessed = bytes(objects.SECRET_BYTES)
        runtime.current().members_secret = guessed
        objects.unpickled = lambda body: None  # here nothing shall go off  # type: ignore[assignment]
        objects.opened = lambda *_: b""  # type: ignore[assignment]
        hvd.broadcast_object(Bomb(Path(folder, "by broadcast")), root_rank=1)
        hvd.allgather_object(Bomb(Path(folder, "by allgather")))
        bare = torch.frombuffer(bytearray(objects.pickled(Bomb(Path(folder, "without a tag")))), dtype=torch.uint8)
        send(bare)
    else:
        with pytest.raises(hvd.HorovodInternalError, match=REFUSED):
            hvd.broadcast_object(root_rank=1)
        with pytest.raises(hvd.HorovodInternalError, match=REFUSED):
            hvd.allgather_object("honest")
        with pytest.raises(hvd.HorovodInternalError, match=REFUSED):
            hvd.broadcast_object(root_rank=1)
        assert hvd.broadcast_object("the job goes on", root_rank=0) == "the job goes on"
    if rank == 1:
        hvd.broadcast_object(root_rank=0)
    mark.touch()


def send(message: torch.Tensor) -> None:
    """Sends this message as `broadcast_object` does at the root."""
    row = message.numel().to_bytes(8, "big") + objects.draw_nonce()
    hvd.allgather(torch.frombuffer(bytearray(row), dtype=torch.uint8).reshape(1, -1), "object.size")
    hvd.broadcast_(message, 1, "object.bytes")


def test_a_pickle_of_somebody_without_the_jobs_secret_runs_no_code(
    launch: Callable[..., Cluster], tmp_path: Path
) -> None:
    pair = launch(2)
    pair.run(sends_bombs, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made by rank 0", "made by rank 1"]


def replays(rank: int, size: int) -> None:
    horovod_ranks.begin(rank, size)
    if rank == 1:
        sent: list[bytes] = []
        seal = objects.sealed

        def record(*arguments: Any) -> bytes:
            sent.append(seal(*arguments))
            return sent[-1]

        objects.sealed = record  # type: ignore[assignment]
        hvd.broadcast_object("once", root_rank=1)
        send(torch.frombuffer(bytearray(sent[0]), dtype=torch.uint8))
    else:
        assert hvd.broadcast_object(root_rank=1) == "once"
        with pytest.raises(hvd.HorovodInternalError, match=REFUSED):
            hvd.broadcast_object(root_rank=1)


def test_an_object_that_is_sent_again_is_refused(launch: Callable[..., Cluster]) -> None:
    launch(2).run(replays)


@runs_in("trio")
def test_the_secret_is_the_ranks_own_and_another_one_after_the_next_init(rank: int, size: int) -> None:
    secrets = hvd.allgather_object(runtime.current().members_secret)
    assert len(set(secrets)) == 1 and len(secrets[0]) == objects.SECRET_BYTES
    hvd.shutdown()
    horovod_ranks.begin(rank, size)
    assert runtime.current().members_secret not in secrets
