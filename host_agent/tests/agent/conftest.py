from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from wiresum_lab.doubles.resuming import FallbackOf, Job, Service, Start


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service().start()
    yield service
    service.kill()


@pytest.fixture
def start() -> Iterator[Start]:
    with contextlib.ExitStack() as cleanup:

        def start_one(*arguments: object, **fields: object) -> Job:
            job = Job(*arguments, **fields)  # type: ignore[arg-type]
            cleanup.callback(job.leave)
            return job

        yield start_one


@pytest.fixture
def fallback() -> Iterator[FallbackOf]:
    fallback = FallbackOf(Service())
    yield fallback
    fallback.service.kill()
