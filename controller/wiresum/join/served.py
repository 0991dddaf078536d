"""The jobs that a worker's own switch serves, as the worker that starts the switch says, and what a job's secret
proves.

The secret is `members_secret` of the job's first grant, which only its workers and its services know. A worker that
would continue its job shows an id derived from the secret. The fallback switch shows a proof derived from the secret
first, so that a worker tells nothing to another process that listens at its port.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable
from typing import NamedTuple

MESSAGE_BYTES_MAX = 1 << 20
NONCE_BYTES = 16
JOB_ID_BYTES = 16


class ServedJob(NamedTuple):
    name: str
    tenant: str
    """The tenant, as WIRESUM_TENANT says at rank 0; empty: the one in its certificate."""
    secret: str
    """The job's secret, hexadecimal."""
    workers: int
    slots: int


def pack(jobs: Iterable[ServedJob] | None) -> bytes:
    """Packs a message of jobs; None: the switch serves any job, as other switches do."""
    return json.dumps(None if jobs is None else list(jobs)).encode()


def unpack(message: bytes) -> list[ServedJob] | None:
    """Unpacks a message of jobs. Raises a `ValueError` or a `TypeError`."""
    jobs = json.loads(message)
    return None if jobs is None else [ServedJob(*fields) for fields in jobs]


def job_id(secret: bytes) -> bytes:
    """Derives `Resumed.job_id`."""
    return hashlib.sha256(b"job id" + secret).digest()[:JOB_ID_BYTES]


def proof(secret: bytes, nonce: bytes) -> bytes:
    """Derives `Proof.mac`."""
    return hmac.digest(hashlib.sha256(b"fallback" + secret).digest(), nonce, "sha256")
