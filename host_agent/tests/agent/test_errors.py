from __future__ import annotations

import pickle

import pytest

from wiresum.agent import errors


@pytest.mark.parametrize(
    "error",
    [
        errors.WiresumError("text"),
        errors.JoinError("text", code="ALREADY_EXISTS"),
        errors.WorkerLostError("text", rank=3, host_name="host", address="10.0.0.3"),
        errors.WorkerLeftError("text", reason="reason", rank=3, host_name="host", address="10.0.0.3"),
        errors.SwitchUnreachableError("text"),
        errors.DivergedError("text", number=7),
        errors.ImpossibleSumError("text"),
        errors.WrongSumError("text"),
        errors.CollectiveTimeoutError("text"),
        errors.SessionClosedError("text"),
        errors.JobAbortedError("text", reason="reason"),
    ],
)
def test_every_error_is_a_wiresum_error_and_survives_pickling(error: errors.WiresumError) -> None:
    assert isinstance(error, errors.WiresumError)
    assert isinstance(error, RuntimeError)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == "text"
    assert vars(copy) == vars(error)
