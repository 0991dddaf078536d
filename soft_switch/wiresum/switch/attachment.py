"""A switch that stands below another one: it says so to that one's service, for as long as it lives.

The service drives it over P4Runtime then, and workers of both join there (wiresum.controller.service.attaching).
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import grpc

from wiresum import join
from wiresum.join import attach_pb2_grpc
from wiresum.join.credentials import open_channel

log = logging.getLogger(__name__)

AGAIN_S = 2.0
"""A service that was started anew hears of this switch so soon."""
ANSWER_S_MAX = 5.0
STOP_S_MAX = 6.0


class AttachmentRefusedError(ValueError):
    """The text is the service's."""


class Attachment:
    """From construction to `close`."""

    def __init__(self, parent: str, request: join.AttachRequest, *, tls: Path | None, insecure: bool) -> None:
        """`parent`: host:port of the service. Raises `AttachmentRefusedError`, or `CredentialsError`. A service that
        does not answer yet is asked again."""
        self._parent, self._request = parent, request
        self._channel = open_channel(parent, tls=tls, insecure=insecure)
        self._stub = attach_pb2_grpc.SwitchServiceStub(self._channel)
        self._stop = threading.Event()
        self._trouble = ""
        self._thread = threading.Thread(target=self._go_on, name="wiresum-attachment", daemon=True)
        try:
            self._ask()
        except AttachmentRefusedError:
            self._channel.close()
            raise
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Idempotent."""
        self._stop.set()
        self._thread.join(STOP_S_MAX)
        self._channel.close()

    def _go_on(self) -> None:
        while not self._stop.wait(AGAIN_S):
            try:
                self._ask()
            except AttachmentRefusedError as error:
                self._note(str(error))

    def _ask(self) -> None:
        try:
            self._stub.Attach(self._request, timeout=ANSWER_S_MAX)
        except grpc.RpcError as error:
            text = f"the switch above, {self._parent}, does not take this one: {error.details()}"
            refused = any(key == join.REFUSED_KEY for key, _ in error.trailing_metadata() or ())
            if refused or error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise AttachmentRefusedError(text) from error
            self._note(text)
        else:
            self._note("")

    def _note(self, trouble: str) -> None:
        """What is new."""
        if trouble and not self._trouble:
            log.error("%s; it is asked again", trouble)
        elif self._trouble and not trouble:
            log.warning("the switch above, %s, has this one below it again", self._parent)
        self._trouble = trouble
