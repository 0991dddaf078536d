"""One P4Runtime connection: its stream, and the requests beside the stream. For one event loop.

Arbitration. Each controller bids an election id; the highest may write, and all are told whenever this changes. When
the primary goes, servers differ: bmv2 makes the next highest bidder primary; a server that follows the specification
says that there is none, and takes no bid below the highest ever. `Standing` covers both.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import finsy as fy
import grpc
from finsy.proto import U128, p4r, p4r_grpc, rpc_code

from wiresum.controller.driver import Versions
from wiresum.controller.p4runtime import versions
from wiresum.controller.p4runtime.device_config import Pipeline
from wiresum.join import credentials

ELECTION_ID_MAX = (1 << 127) - 1
"""The highest election id that a controller of ours bids first, and that a software switch takes. P4Runtime has as many
ids above."""
LOAD_S_MAX = 120.0
"""How long a switch may take to load a program: a chip is reset for this."""


@dataclass(frozen=True)
class Standing:
    """Who may write to the switch."""

    election_id: int
    """Election id of the primary, or of the last one if there is none."""
    primary: bool
    """True if this controller is primary."""
    vacant: bool
    """True if there is no primary."""


class Runs(enum.Enum):
    """The kind of program that a switch runs."""

    NOTHING = enum.auto()
    ANOTHER = enum.auto()
    """Another program, or ours with cells of another sequence of keys."""
    OURS = enum.auto()


class Connection:
    """A connection. Its methods raise `fy.P4ClientError`, its constructor `credentials.CredentialsError`."""

    def __init__(self, address: str, device: int, tls: Path | None) -> None:
        self._device = device
        self._client = fy.P4Client(address, _credentials(tls) if tls else None, wait_for_ready=False)
        self.election_id = 0
        """The id that was bid last."""
        self.program = ""
        """Version of the program that `runs` has found; empty: there is none, or it has no version."""

    async def __aenter__(self) -> Connection:
        await self._client.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def bid(self, election_id: int) -> None:
        """Bids an election id. The answer comes as the next `standing`, or one soon after."""
        self.election_id = election_id
        request = p4r.StreamMessageRequest()
        request.arbitration.device_id = self._device
        request.arbitration.election_id.CopyFrom(U128.encode(election_id))
        await self._client.send(request)

    async def standing(self) -> Standing:
        """Waits for the next news of who is primary."""
        while True:
            message = await self._client.receive()
            if message.HasField("arbitration"):
                highest, code = U128.decode(message.arbitration.election_id), message.arbitration.status.code
                primary = code == rpc_code.OK and highest == self.election_id
                return Standing(highest, primary, vacant=code == rpc_code.NOT_FOUND)

    async def check_alive(self) -> Versions:
        """Returns if the switch answers at all, with what a software switch says of its versions."""
        try:
            answer = await self._client.request(p4r.CapabilitiesRequest())
        except fy.P4ClientError as error:
            if error.code != fy.GRPCStatusCode.UNIMPLEMENTED:
                raise
            return Versions()
        return versions.said(answer)

    async def runs(self, pipeline: Pipeline) -> Runs:
        """Which program the switch runs, by its cookie: without a cookie nobody knows whose keys the cells hold."""
        request = p4r.GetForwardingPipelineConfigRequest(
            device_id=self._device, response_type=p4r.GetForwardingPipelineConfigRequest.P4INFO_AND_COOKIE
        )
        try:
            config = (await self._client.request(request)).config
        except fy.P4ClientError as error:
            if error.is_pipeline_missing:
                return Runs.NOTHING
            raise
        self.program = config.p4info.pkg_info.version[: versions.CHARACTERS_MAX]
        if config.HasField("cookie") and config.cookie.cookie == pipeline.cookie:
            return Runs.OURS
        return Runs.ANOTHER if config.HasField("cookie") or config.HasField("p4info") else Runs.NOTHING

    async def load(self, pipeline: Pipeline) -> None:
        await self._set(pipeline, p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT)

    async def verify(self, pipeline: Pipeline) -> None:
        """Raises an error if the switch could not load the program, as far as the switch can tell. A software switch
        tells every controller, others only the primary."""
        try:
            await self._set(pipeline, p4r.SetForwardingPipelineConfigRequest.VERIFY)
        except fy.P4ClientError as error:
            if error.code != fy.GRPCStatusCode.UNIMPLEMENTED:
                raise

    async def _set(self, pipeline: Pipeline, action: Any) -> None:
        config = p4r.ForwardingPipelineConfig(p4info=pipeline.p4info, p4_device_config=pipeline.device_config)
        config.cookie.cookie = pipeline.cookie
        request = p4r.SetForwardingPipelineConfigRequest(device_id=self._device, action=action, config=config)
        request.election_id.CopyFrom(U128.encode(self.election_id))
        stub: Any = p4r_grpc.P4RuntimeStub(self._client.channel)
        try:  # not by finsy, which gives every request 10 s
            await stub.SetForwardingPipelineConfig(request, timeout=LOAD_S_MAX)
        except grpc.RpcError as error:
            raise fy.P4ClientError(error, "SetForwardingPipelineConfig") from None

    async def write(self, kind: str, entities: Iterable[p4r.Entity]) -> None:
        """Writes entities. `kind`: "INSERT", "MODIFY" or "DELETE" (no error for entities that are not there)."""
        request = p4r.WriteRequest(device_id=self._device)
        request.election_id.CopyFrom(U128.encode(self.election_id))
        request.updates.extend(p4r.Update(type=p4r.Update.Type.Value(kind), entity=entity) for entity in entities)
        try:
            await self._client.request(request)
        except fy.P4ClientError as error:
            if kind != "DELETE" or not error.is_not_found_only:
                raise

    async def read(self, entities: Sequence[p4r.Entity]) -> list[p4r.Entity]:
        """Reads entities; needs no arbitration."""
        request = p4r.ReadRequest(device_id=self._device, entities=entities)
        answers: AsyncIterator[p4r.ReadResponse] = self._client.request_iter(request)
        return [entity async for answer in answers for entity in answer.entities]


def _credentials(tls: Path) -> fy.GRPCCredentialsTLS:
    """Reads the credentials for each connection, so that the next one uses a renewed certificate."""
    read = credentials.load(tls)
    return fy.GRPCCredentialsTLS(cacert=read.authority, cert=read.certificate, private_key=read.key)
