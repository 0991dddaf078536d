"""Encodes objects as bytes for other ranks, which unpickle them only if a member of the job has sent them.

A pickle can run any code when it is read, and nothing that carries it is authenticated: neither the packets to the
switch, nor Gloo's connections, nor the store through which ranks meet. So the bytes begin with a tag, an HMAC under the
secret that the join service gives to the members of the job alone. The tag covers the call, its sender, and a number
that each receiver has just drawn, so that a tag of another call is refused, too.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import pickle
import secrets
from collections.abc import Sequence
from typing import Any

import torch

from wiresum.horovod.torch.handle import HorovodInternalError

try:
    import cloudpickle
except ImportError as error:
    raise ImportError(
        "wiresum.horovod needs cloudpickle, which sends objects to other ranks: pip install cloudpickle",
        name="cloudpickle",
    ) from error

SECRET_BYTES = 32
NONCE_BYTES = 16
TAG_BYTES = hashlib.sha256().digest_size


def draw_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def pickled(obj: Any) -> bytes:
    """The object pickled by cloudpickle, which takes lambdas and local classes, within torch.save, which handles all
    tensors and preserves shared memory."""
    buffer = io.BytesIO()
    torch.save(obj, buffer, pickle_module=cloudpickle, pickle_protocol=pickle.HIGHEST_PROTOCOL)
    return buffer.getvalue()


def sealed(body: bytes, secret: bytes, call: Sequence[object], nonces: Sequence[bytes]) -> bytes:
    """The body with its tag. `call` is function, name and sending rank; `nonces` has one number of each rank."""
    return _tag(body, secret, call, nonces) + body


def opened(message: bytes, secret: bytes, call: Sequence[object], nonces: Sequence[bytes]) -> bytes:
    """The body of a message that `sealed` made. Raises a `HorovodInternalError` unless a member of the job made it for
    this call."""
    tag, body = message[:TAG_BYTES], message[TAG_BYTES:]
    if not hmac.compare_digest(tag, _tag(body, secret, call, nonces)):
        what, name, sender = call
        raise HorovodInternalError(
            f"{what} of '{name}': what came as rank {sender}'s object was not sent by a member of this job, so it was "
            "not unpickled. Somebody changes data in the network, or the rank makes another call under this name"
        )
    return body


def unpickled(body: bytes) -> Any:
    """Unpickles a body, which runs the code in the pickle: call it only with a body that `opened` returned."""
    return torch.load(io.BytesIO(body), weights_only=False)


def _tag(body: bytes, secret: bytes, call: Sequence[object], nonces: Sequence[bytes]) -> bytes:
    code = hmac.new(secret, digestmod=hashlib.sha256)
    context = json.dumps([*call, [nonce.hex() for nonce in nonces]]).encode()
    code.update(len(context).to_bytes(8, "big") + context)
    code.update(body)
    return code.digest()
