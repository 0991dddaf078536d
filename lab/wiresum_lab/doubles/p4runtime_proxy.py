"""Doubles for tests of drivers of a switch over P4Runtime: a software switch with its P4Runtime server; a proxy in
front of a server, which records requests and fails on demand; and files like those that the compiler writes for a
Tofino."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from finsy.proto import p4r

from wiresum import compiled
from wiresum.controller.p4runtime import Target, device_config
from wiresum.controller.p4runtime.client import Times
from wiresum.switch.p4runtime import P4RuntimeServer
from wiresum.switch.software_switch import SoftwareSwitch
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import SwitchAt, controller_config

PATIENT = Times(handshake_s_max=PATIENCE_S, probe_answer_s_max=PATIENCE_S, call_s_max=PATIENCE_S)
"""Time-outs so long that a controller does not take a switch on a busy machine for dead."""
THREADS = 32
STOP_S_MAX = 1.0
_SERVICE = "/p4.v1.P4Runtime/"
_STREAMING = {"Read": (False, True), "StreamChannel": (True, True)}
"""Whether the requests, and whether the answers, of a method are a stream. Other methods have neither."""


SetConfig = p4r.SetForwardingPipelineConfigRequest


@dataclass(frozen=True)
class ProgrammedSwitch:
    switch: SoftwareSwitch
    p4runtime: str
    """The address of the switch's P4Runtime server."""
    device: int

    @property
    def target(self) -> Target:
        sizes, (address, port) = self.switch.sizes, self.switch.endpoint
        pipeline = device_config.software(lanes=sizes.lanes_max, slots=sizes.slots)
        return Target("leaf", "software", self.p4runtime, self.device, pipeline, address, port=port)

    def configuration(self, listen: int) -> str:
        """The configuration of a controller that drives this switch alone, and serves joins at this port."""
        sizes, p4runtime = self.switch.sizes, int(self.p4runtime.rpartition(":")[2])
        at = SwitchAt("leaf", p4runtime, self.switch.endpoint.port)
        return controller_config(listen=listen, switches=[at], slots=sizes.slots, lanes=sizes.lanes_max)


@contextlib.contextmanager
def programmed_switch(device: int = 0, *, tls: Path | None = None, **settings: Any) -> Iterator[ProgrammedSwitch]:
    """Runs a software switch and its P4Runtime server, without a program at first. `settings` are of the
    `SoftwareSwitch`."""
    with contextlib.closing(SoftwareSwitch(**{"port": 0, "threads": 1, **settings})) as switch:
        server = P4RuntimeServer(switch, device, tls=tls)
        try:
            yield ProgrammedSwitch(switch, f"127.0.0.1:{server.start(port=0)}", device)
        finally:
            server.stop()


class Proxy:
    """A proxy of a P4Runtime server, from construction to `stop`, at a port of 127.0.0.1, a free one unless given.
    `stop` does not end the server behind it, at `target`."""

    def __init__(self, target: str, port: int = 0) -> None:
        self.log: list[tuple[str, str]] = []
        """Requested updates: INSERT, MODIFY or DELETE, and the table, "group" or "counter"."""
        self.loads = 0
        """How many requests to load a program have come."""
        self.refuses: Callable[[str, str], bool] = lambda _kind, _place: False
        """Whether to refuse an update. A Write with such an update is answered with INTERNAL, and changes nothing."""
        self.answering = threading.Event()
        """While this event is cleared, no request is answered."""
        self.answering.set()
        self.holds = threading.Event()
        """Set when a request has come that is not answered."""
        self._stopped = False
        self._tables = {table.preamble.id: table.preamble.alias for table in device_config.bmv2().p4info.tables}
        self._channel = grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])
        self._server: Any = grpc.server(futures.ThreadPoolExecutor(THREADS), handlers=[self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"
        self._server.start()

    def stop(self) -> None:
        """Breaks all connections; unanswered requests are not passed on. Idempotent."""
        self._stopped = True
        stopped = self._server.stop(0)
        self.answering.set()
        stopped.wait(STOP_S_MAX)
        self._channel.close()

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        if not method.startswith(_SERVICE):
            return None
        streams = _STREAMING.get(method.removeprefix(_SERVICE), (False, False))
        if streams == (False, False):
            return grpc.unary_unary_rpc_method_handler(lambda request, context: self._pass(method, request, context))
        call = self._channel.unary_stream(method) if streams == (False, True) else self._channel.stream_stream(method)
        made = (
            grpc.unary_stream_rpc_method_handler if streams == (False, True) else grpc.stream_stream_rpc_method_handler
        )
        return made(lambda request, context: self._stream(call, request, context))

    def _pass(self, method: str, request: bytes, context: Any) -> bytes:
        self._wait(context)
        if method.endswith("/Write"):
            self._note(p4r.WriteRequest.FromString(request), context)
        if method.endswith("/SetForwardingPipelineConfig"):
            self.loads += SetConfig.FromString(request).action != SetConfig.VERIFY
        try:
            answer: bytes = self._channel.unary_unary(method)(request)
            return answer
        except grpc.RpcError as error:
            _abort(error, context)
            raise

    def _stream(self, call: Any, request: object, context: Any) -> Iterator[bytes]:
        self._wait(context)
        answers = call(request)
        context.add_callback(answers.cancel)
        try:
            yield from answers
        except grpc.RpcError as error:
            if context.is_active():
                _abort(error, context)

    def _wait(self, context: Any) -> None:
        if not self.answering.is_set():
            self.holds.set()
        self.answering.wait()
        if self._stopped or not context.is_active():
            raise ConnectionAbortedError("the caller is gone")

    def _note(self, request: p4r.WriteRequest, context: Any) -> None:
        updates = [(p4r.Update.Type.Name(update.type), self._place(update.entity)) for update in request.updates]
        if any(self.refuses(*update) for update in updates):
            context.abort(grpc.StatusCode.INTERNAL, "Out of order")
        self.log += updates

    def _place(self, entity: p4r.Entity) -> str:
        if entity.HasField("table_entry"):
            return str(self._tables[entity.table_entry.table_id])
        return "group" if entity.HasField("packet_replication_engine_entry") else "counter"


def write_tofino_program(folder: Path) -> None:
    """Writes files like the compiler's, with paths relative to the folder in which the compiler was started, and the
    P4Info as `info.txtpb`. The binaries have no real content."""
    (folder / "pipe").mkdir()
    (folder / "bfrt.json").write_bytes(b'{"bfrt": 1}')
    (folder / "pipe/context.json").write_bytes(b'{"context": 1}')
    (folder / "pipe/tofino.bin").write_bytes(b"\x00chip")
    pipeline = {
        "p4_pipeline_name": "pipe",
        "context": "build/tofino/pipe/context.json",
        "config": "build/tofino/pipe/tofino.bin",
        "pipe_scope": [0, 1, 2, 3],
        "path": "build/tofino",
    }
    program = {"program-name": "main", "bfrt-config": "build/tofino/bfrt.json", "p4_pipelines": [pipeline]}
    document = {"chip_list": [{}], "p4_devices": [{"device-id": 0, "p4_programs": [program]}]}
    (folder / "main.conf").write_text(json.dumps(document))
    (folder / "info.txtpb").write_text(compiled.load("v1model").p4info)


def _abort(error: Any, context: Any) -> None:
    context.set_trailing_metadata(tuple(error.trailing_metadata() or ()))
    context.abort(error.code(), error.details())
