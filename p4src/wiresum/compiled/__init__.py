"""The switch program, compiled: what p4c made of p4src, as data. compile_program.py writes the files beside this one.

program = compiled.load("v1model")
program.p4info            # text of a p4.config.v1.P4Info message
program.device_config     # bytes for SetForwardingPipelineConfig
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from dataclasses import dataclass
from importlib import resources

__all__ = ["Program", "load"]

DIGEST_DIGITS = 12


@dataclass(frozen=True)
class Program:
    """The switch program for one target."""

    p4info: str
    device_config: bytes
    lanes: int
    """32-bit words of a packet's payload; all jobs have as many."""
    slots: int
    job_rows: int
    """Rows of the counters; row 0 is for packets of no job."""

    @functools.cached_property
    def version(self) -> str:
        """Version of the wire protocol and of the tables, as P4Info gives it (p4src/common/sizes.p4)."""
        found = re.search(r'^pkg_info \{[^}]*\bversion: "([^"]*)"', self.p4info, re.MULTILINE)
        return found[1] if found else ""

    @functools.cached_property
    def digest(self) -> str:
        """Digest of the P4Info: tells two builds of one version apart."""
        return hashlib.sha256(self.p4info.encode()).hexdigest()[:DIGEST_DIGITS]


@functools.cache
def load(target: str) -> Program:
    """The program for "v1model". Raises `FileNotFoundError` if there is none for the target."""
    folder = resources.files(__package__)
    sizes = json.loads((folder / "program.json").read_text())["sizes"]
    return Program(
        p4info=(folder / f"{target}.p4info.txtpb").read_text(),
        device_config=(folder / f"{target}.json").read_bytes(),
        lanes=sizes["lanes"],
        slots=sizes["slots"],
        job_rows=sizes["job_rows"],
    )
