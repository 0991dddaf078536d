"""Why a P4Runtime request, or one update of it, was not carried out."""

from __future__ import annotations

import functools

import grpc


class Refusal(Exception):  # noqa: N818 - a Refusal is an answer, not a failure
    """An error's canonical code, and a sentence for people."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def number(self) -> int:
        """The code as a number of google.rpc.Code."""
        number: int = self.code.value[0]
        return number


invalid = functools.partial(Refusal, grpc.StatusCode.INVALID_ARGUMENT)
unimplemented = functools.partial(Refusal, grpc.StatusCode.UNIMPLEMENTED)
not_found = functools.partial(Refusal, grpc.StatusCode.NOT_FOUND)
already_exists = functools.partial(Refusal, grpc.StatusCode.ALREADY_EXISTS)
out_of_range = functools.partial(Refusal, grpc.StatusCode.OUT_OF_RANGE)
exhausted = functools.partial(Refusal, grpc.StatusCode.RESOURCE_EXHAUSTED)
denied = functools.partial(Refusal, grpc.StatusCode.PERMISSION_DENIED)
too_early = functools.partial(Refusal, grpc.StatusCode.FAILED_PRECONDITION)
