"""Which names jobs and tenants may have."""

from __future__ import annotations

import re

from wiresum.join.constants import JOB_NAME_BYTES_MAX

_NAME = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*")


def name_problem(name: str, bytes_max: int = JOB_NAME_BYTES_MAX) -> str:
    """What is wrong with the name of a job or a tenant; empty: nothing. Other characters have meanings in shells,
    labels and files."""
    if len(name) <= bytes_max and _NAME.fullmatch(name):
        return ""
    return f"must be letters, digits, '.', '_' and '-', not begin with '-', and have at most {bytes_max} characters"
