"""Versions of this installation, and of others as a report gives them."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING

from wiresum import compiled
from wiresum.join import PROTOCOL_VERSION
from wiresum.join.constants import STATE_SCHEMA
from wiresum.join.release import software_version

if TYPE_CHECKING:
    from wiresum import join

PACKAGES = ("torch", "grpcio", "protobuf", "numpy")


def installed() -> dict[str, str]:
    """Versions of this installation by name, for people and as JSON."""
    program = compiled.load("v1model")
    return {
        "wiresum": software_version(),
        "join protocol": str(PROTOCOL_VERSION),
        "state schema": str(STATE_SCHEMA),
        "switch program": program.version,
        "P4Info digest": program.digest,
    }


def of_packages() -> dict[str, str]:
    """Versions of the packages that this installation uses; empty: the package is not installed."""
    found = dict.fromkeys(PACKAGES, "")
    for name in found:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found | {"python": platform.python_version()}


def of_service(service: join.ServiceReport) -> dict[str, str]:
    """Versions of a controller, by the names that `installed` uses."""
    return {
        "wiresum": service.software_version,
        "join protocol": str(service.join_protocol),
        "state schema": str(service.state_schema),
        "switch program": service.program_version,
        "P4Info digest": service.program_digest,
    }


def of_switch(switch: join.SwitchReport) -> str:
    """Versions of a switch in words; empty if the switch has not said."""
    known = [f"wiresum {switch.software_version}"] if switch.software_version else []
    return ", ".join([*known, *([f"program {switch.program_version}"] if switch.program_version else [])])


def of_controller(service: join.ServiceReport) -> str:
    return f"wiresum {service.software_version}, program {service.program_version}"


def in_words(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in versions.items())
