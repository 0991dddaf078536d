"""How the services of a server answer."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from wiresum import join
from wiresum.controller.jobs.refusal import Refusal


async def refuse(context: Any, refusal: Refusal) -> NoReturn:
    await context.abort(grpc.StatusCode[refusal.code], refusal.text, ((join.REFUSED_KEY, "1"),))
    raise AssertionError("abort raises")
