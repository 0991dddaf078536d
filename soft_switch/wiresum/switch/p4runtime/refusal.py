"""Why a P4Runtime request, or one update of it, was not carried out."""

from __future__ import annotations

import grpc


class Refusal(Exception):  # noqa: N818 - it is an answer, not a failure
    """A canonical code and a sentence for people."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def number(self) -> int:
        """The code as google.rpc.Code has it."""
        number: int = self.code.value[0]
        return number


def invalid(text: str) -> Refusal:
    return Refusal(grpc.StatusCode.INVALID_ARGUMENT, text)


def unimplemented(text: str) -> Refusal:
    return Refusal(grpc.StatusCode.UNIMPLEMENTED, text)


def not_found(text: str) -> Refusal:
    return Refusal(grpc.StatusCode.NOT_FOUND, text)


def already_exists(text: str) -> Refusal:
    return Refusal(grpc.StatusCode.ALREADY_EXISTS, text)


def out_of_range(text: str) -> Refusal:
    return Refusal(grpc.StatusCode.OUT_OF_RANGE, text)


def exhausted(text: str) -> Refusal:
    return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, text)


def denied(text: str) -> Refusal:
    return Refusal(grpc.StatusCode.PERMISSION_DENIED, text)


def too_early(text: str) -> Refusal:
    return Refusal(grpc.StatusCode.FAILED_PRECONDITION, text)
