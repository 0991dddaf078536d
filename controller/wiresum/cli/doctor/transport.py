"""Checks whether this worker's transport is available here, by opening the transport for a moment: nothing else is
certain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wiresum.agent import AgentConfig, _native
from wiresum.cli.doctor.finding import Finding, ok, problem

ADVICE = "docs/transports.md says what each transport needs; WIRESUM_TRANSPORT=udp needs nothing"


def findings(config: AgentConfig, address: str, root: Path = Path("/")) -> Iterator[Finding]:
    """Findings about the transport. `address`: this host's address for data."""
    try:
        obtained = _native.try_transport(config.transport, address, config.threads or 1)
    except (RuntimeError, OSError, ValueError) as error:
        yield problem(
            "transport",
            f"WIRESUM_TRANSPORT={config.transport} is not available: {error}",
            "this worker would not join its job",
            ADVICE,
        )
        return
    pages = _free_huge_pages(root)
    huge = f"; {pages} huge pages are free" if config.transport_kind == "dpdk" and pages is not None else ""
    yield ok("transport", f"packets go by {obtained}{huge}")


def _free_huge_pages(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("HugePages_Free:")), None)
