"""Asks for a place in a job until there is one.

Launchers start workers, switch and controller at the same time, so a worker waits for a service that is not there yet,
and for a job of the same name that is just ending. A connection that breaks meanwhile is made again, at the next
endpoint if there are several: the worker's `attempt` tells the service that the worker is the same one.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import socket
import threading
from typing import Any

from wiresum import join as messages
from wiresum.agent import lifetime
from wiresum.agent.clock import CLOCK, Clock
from wiresum.agent.config import AgentConfig
from wiresum.agent.control import Control, ask_again_after_s, code_of, details, grpc, is_from_service
from wiresum.agent.diagnosis import error_of
from wiresum.agent.errors import JoinError, WiresumError
from wiresum.join import hosts
from wiresum.join.credentials import CredentialsError, refuses_certificate, tls_advice

log = logging.getLogger(__name__)

WAITING_SAID_AFTER_S = 2.0
REACH_S_MAX = 300.0
"""The longest wait for a service that cannot be reached, however long a job may wait for room."""
MISFIT_S_MAX = 30.0
"""The longest wait while certificates do not fit: long enough to replace a TLS directory."""
JOIN_MARGIN_S = 3.0
"""This worker waits so much longer than the service, so that the service's text arrives."""


class Interruption:
    """Lets another thread end the wait for a place, since the job is over before it has begun."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._interrupted = threading.Event()
        self._error: WiresumError | None = None
        self._call: Any = None

    def interrupt(self, error: WiresumError) -> None:
        """Every present and future wait raises `error`: the first one, if there are several."""
        with self._lock:
            self._error = self._error or error
            call = self._call
        self._interrupted.set()
        if call is not None:
            call.cancel()

    def watch(self, call: Any) -> None:
        """Registers a call that an interruption cancels."""
        with self._lock:
            self._call = call
        if self._interrupted.is_set():
            call.cancel()

    def check(self) -> None:
        """Raises the error of the interruption, if there was one."""
        if self._error is not None:
            raise self._error

    def sleep(self, seconds: float, clock: Clock) -> None:
        clock.wait(self._interrupted, seconds)
        self.check()


def ask_until_granted(
    control: Control,
    config: AgentConfig,
    request: messages.JoinRequest,
    interruption: Interruption,
    clock: Clock = CLOCK,
) -> messages.JoinReply:
    """Raises a `JoinError`, the error of an interruption, or why a job that would go on is over."""
    begun_at = clock.now()
    give_up_at = begun_at + config.join_timeout_s
    waiting = _Waiting(give_up_at, clock)
    try:
        while True:
            try:
                return _ask(control, request, give_up_at - clock.now(), waiting, interruption)
            except grpc.RpcError as error:
                interruption.check()
                pause_s, from_service = ask_again_after_s(error), is_from_service(error)
                until = waiting.until(error)
                if pause_s is None or until - clock.now() <= pause_s:
                    raise _join_error(error, control, config, request.job_name, clock.now() - begun_at) from None
                if from_service:
                    waiting.hear(details(error))
                else:
                    waiting.say(_unreached(error, config), until)
            interruption.sleep(pause_s, clock)
            if not from_service and len(config.control_endpoints) > 1:
                control.reconnect()
    except CredentialsError as error:
        raise JoinError(f"cannot join job '{request.job_name}': {error}", code="UNAUTHENTICATED") from None
    finally:
        waiting.end()


def _ask(
    control: Control,
    request: messages.JoinRequest,
    left_s: float,
    waiting: _Waiting,
    interruption: Interruption,
) -> messages.JoinReply:
    """Asks once. Raises a `grpc.RpcError`, also if the stream ends without a grant, and why the job is over."""
    left_s = max(0.001, left_s)
    request.timeout_ms = max(1, int(1000 * left_s))
    call = control.stub().Join(request, timeout=left_s + JOIN_MARGIN_S)
    lifetime.watch(call)
    interruption.watch(call)
    granted: messages.JoinReply | None = None
    try:
        # Read to its end, which follows the grant: gRPC logs a stack at the service for a call that is cut off there.
        for event in call:
            if event.HasField("granted"):
                granted = event.granted
            elif event.HasField("waiting"):
                waiting.hear(event.waiting.reason)
            elif event.HasField("ended"):
                raise error_of(event.ended, request.job_name, f"the switch at {control.endpoint}")
    except grpc.RpcError:
        if granted is None:
            raise
    finally:
        call.cancel()
    if granted is None:
        raise _NoGrantError
    return granted


class _NoGrantError(grpc.RpcError):  # type: ignore[misc]
    """The service ended the stream without a word, which counts as a broken connection."""

    def code(self) -> Any:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "it ended the call without an answer"


class _Waiting:
    """Tells the user what the worker waits for, once that takes long, and again whenever it changes."""

    def __init__(self, give_up_at: float, clock: Clock) -> None:
        self._give_up_at, self._clock = give_up_at, clock
        self._lock = threading.Lock()
        self._heard_at = clock.now()
        """The time at which the service was last heard from."""
        self._misfit_at = math.inf
        """The time of the first of the last errors in a row by which a certificate does not fit."""
        self._latest, self._until = "", give_up_at
        self._said = ""
        self._due = False
        self._over = threading.Event()
        clock.start(self._fall_due, "wiresum-waiting")

    def until(self, error: Any) -> float:
        """Returns the time at which the worker gives up, if each further question ends with an error like this one.
        Other failures of a handshake than a certificate's may come from a service that is just starting, or is busy."""
        misfits = not is_from_service(error) and refuses_certificate(details(error))
        self._misfit_at = min(self._misfit_at, self._clock.now()) if misfits else math.inf
        if is_from_service(error):
            return self._give_up_at
        return min(self._give_up_at, self._heard_at + REACH_S_MAX, self._misfit_at + MISFIT_S_MAX)

    def hear(self, text: str) -> None:
        """Notes what the service says."""
        self._heard_at = self._clock.now()
        self.say(text, self._give_up_at)

    def say(self, text: str, until: float) -> None:
        with self._lock:
            self._latest, self._until = text, until
            self._say()

    def end(self) -> None:
        self._over.set()

    def _fall_due(self) -> None:
        if self._clock.wait(self._over, WAITING_SAID_AFTER_S):
            return
        with self._lock:
            self._due = True
            self._say()

    def _say(self) -> None:
        if self._due and self._latest != self._said:
            self._said = self._latest
            left_s = max(0.0, self._until - self._clock.now())
            log.warning("%s (for up to %.0f s more)", self._latest, left_s)


def _unreached(error: Any, config: AgentConfig) -> str:
    text = f"waiting for switch at {config.switch}"
    if advice := tls_advice(details(error), config.tls, "WIRESUM_SWITCH"):
        return f"{text}: {details(error)}: {advice}"
    return f"{text}: {details(error)}" if code_of(error) == "RESOURCE_EXHAUSTED" else text


def _join_error(error: Any, control: Control, config: AgentConfig, job_name: str, after_s: float) -> JoinError:
    code = code_of(error)
    where = f"the switch at {control.endpoint}"
    if is_from_service(error):
        text = f"cannot join job '{job_name}' at {where}: {details(error)}"
    elif code == "UNAVAILABLE":
        text = (
            f"cannot reach the switch at {config.switch} after {after_s:.0f} s ({details(error)}): "
            f"{_advice(error, config)}"
        )
    elif code == "DEADLINE_EXCEEDED":
        text = f"{where} was reached, but did not answer in {after_s:.0f} s: look at its log"
    elif code == "UNIMPLEMENTED":
        text = f"what listens at {control.endpoint} is no Wiresum switch: set WIRESUM_SWITCH to the host:port of one"
    else:
        text = f"cannot join job '{job_name}': talking to {where} failed: {details(error)}"
    return JoinError(text, code=code)


def _advice(error: Any, config: AgentConfig) -> str:
    if advice := tls_advice(details(error), config.tls, "WIRESUM_SWITCH"):
        return advice
    start = "start one there with `wiresum switch`, or set WIRESUM_SWITCH to the host:port of one that runs"
    nobody_took_it = any(words in details(error).lower() for words in ("to remote host", "tcp handshaker"))
    if config.tls or nobody_took_it:
        return start
    return f"{start}. One that asks for certificates hangs up without WIRESUM_TLS"


def with_address(grant: messages.JoinReply, control: Control) -> messages.JoinReply:
    """Fills in the switch's address, in place, and returns the grant. What a service says is parsed and never looked
    up; only the user's own names are. Raises a `JoinError`."""
    for said in (grant.switch_endpoint, grant.results_group):
        try:
            ipaddress.IPv4Address(said.address or "0.0.0.0")
        except ValueError:
            raise JoinError(
                f"the switch at {control.endpoint} gave a lease at {said.address[:64]!r}: an IP address is needed, "
                f"IPv4 in dotted form, as every release of wiresum gives: look at what runs there",
                code="INTERNAL",
            ) from None
    if grant.switch_endpoint.address in ("", "0.0.0.0"):  # a switch at every address of its host
        grant.switch_endpoint.address = hosts.addresses_of(control.endpoint.rpartition(":")[0], socket.AF_INET)[0]
    return grant
