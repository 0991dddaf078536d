"""Which client is primary, and who is notified: rules of the specification that the conformance tests do not cover."""

from __future__ import annotations

import grpc
import pytest
from finsy.proto import p4r, rpc_code

from wiresum.controller.p4runtime.connection import ELECTION_ID_MAX
from wiresum.switch.p4runtime.arbitration import STREAMS_MAX, Arbitration, Stream
from wiresum.switch.p4runtime.refusal import Refusal

DEVICE = 7


class Controller:
    def __init__(self, arbitration: Arbitration) -> None:
        self.told: list[p4r.MasterArbitrationUpdate] = []
        self.stream = Stream(self.told.append)
        self.arbitration = arbitration
        arbitration.open(self.stream)

    def bid(self, low: int | None, high: int = 0, **fields: object) -> None:
        message = p4r.MasterArbitrationUpdate(**{"device_id": DEVICE, **fields})  # type: ignore[arg-type]
        if low is not None:
            message.election_id.CopyFrom(p4r.Uint128(high=high, low=low))
        self.arbitration.update(self.stream, message)

    def hears(self) -> list[str]:
        codes = [rpc_code.Code.Name(message.status.code) for message in self.told]
        self.told.clear()
        return codes


@pytest.fixture
def arbitration() -> Arbitration:
    return Arbitration(DEVICE)


def may_write(arbitration: Arbitration, low: int, high: int = 0) -> bool:
    return arbitration.may_write(p4r.Uint128(high=high, low=low))


def test_without_a_bid_no_client_may_write(arbitration: Arbitration) -> None:
    Controller(arbitration)
    assert not may_write(arbitration, 0)


def test_the_upper_half_of_an_election_id_is_more_significant(arbitration: Arbitration) -> None:
    first, second = Controller(arbitration), Controller(arbitration)
    first.bid(99)
    second.bid(0, high=1)
    assert first.hears() == ["OK", "ALREADY_EXISTS"]
    assert second.hears() == ["OK"]
    assert may_write(arbitration, 0, high=1)
    assert not may_write(arbitration, 99)


def test_an_election_id_of_zero_may_be_primary_and_an_unset_one_may_not(arbitration: Arbitration) -> None:
    unset, zero = Controller(arbitration), Controller(arbitration)
    unset.bid(None)
    assert unset.told[0].HasField("election_id") is False, "no client has bid yet"
    assert unset.hears() == ["NOT_FOUND"]
    zero.bid(0)
    assert (unset.hears(), zero.hears()) == (["ALREADY_EXISTS"], ["OK"])


def test_an_election_id_above_those_of_our_controllers_is_refused(arbitration: Arbitration) -> None:
    first, stranger = Controller(arbitration), Controller(arbitration)
    first.bid(1)
    for bid in (ELECTION_ID_MAX + 1, (1 << 128) - 1):
        with pytest.raises(Refusal, match=f"takes election ids of up to {ELECTION_ID_MAX}") as refused:
            stranger.bid(bid & (1 << 64) - 1, high=bid >> 64)
        assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert first.hears() == ["OK"]
    stranger.bid(ELECTION_ID_MAX & (1 << 64) - 1, high=ELECTION_ID_MAX >> 64)
    assert stranger.hears() == ["OK"]


def test_after_the_primary_has_gone_only_a_bid_of_at_least_its_election_id_succeeds(arbitration: Arbitration) -> None:
    primary, backup = Controller(arbitration), Controller(arbitration)
    primary.bid(9)
    backup.bid(5)
    arbitration.close(primary.stream)
    arbitration.close(primary.stream)
    assert backup.told[-1].election_id.low == 9
    assert backup.hears() == ["ALREADY_EXISTS", "NOT_FOUND"]
    assert not may_write(arbitration, 9)
    backup.bid(8)
    assert backup.hears() == ["NOT_FOUND"]
    backup.bid(9)
    assert backup.hears() == ["OK"]


def test_all_clients_are_notified_when_the_primary_steps_down(arbitration: Arbitration) -> None:
    primary, backup = Controller(arbitration), Controller(arbitration)
    primary.bid(9)
    backup.bid(5)
    primary.bid(4)
    assert primary.hears() == ["OK", "NOT_FOUND"]
    assert backup.hears() == ["ALREADY_EXISTS", "NOT_FOUND"]


def test_a_backup_that_disconnects_causes_no_notification(arbitration: Arbitration) -> None:
    primary, backup = Controller(arbitration), Controller(arbitration)
    primary.bid(9)
    backup.bid(5)
    arbitration.close(backup.stream)
    assert primary.hears() == ["OK"]


def test_a_stream_without_a_bid_gets_no_notification(arbitration: Arbitration) -> None:
    silent, primary = Controller(arbitration), Controller(arbitration)
    primary.bid(9)
    arbitration.close(primary.stream)
    assert silent.told == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"device_id": 8}, "NOT_FOUND"),
        ({"role": p4r.Role(name="reader")}, "UNIMPLEMENTED"),
        ({"role": p4r.Role(id=3)}, "UNIMPLEMENTED"),
    ],
)
def test_an_unknown_device_or_role_ends_the_stream(
    arbitration: Arbitration, fields: dict[str, object], code: str
) -> None:
    with pytest.raises(Refusal) as refusal:
        Controller(arbitration).bid(1, **fields)
    assert refusal.value.code.name == code


def test_a_stream_cannot_change_its_device(arbitration: Arbitration) -> None:
    controller = Controller(arbitration)
    controller.bid(1)
    with pytest.raises(Refusal) as refusal:
        controller.bid(2, device_id=8)
    assert refusal.value.code.name == "FAILED_PRECONDITION"


def test_the_number_of_streams_is_bounded(arbitration: Arbitration) -> None:
    controllers = [Controller(arbitration) for _ in range(STREAMS_MAX)]
    with pytest.raises(Refusal, match="close one first"):
        Controller(arbitration)
    arbitration.close(controllers[0].stream)
    Controller(arbitration)
