"""The switch in software: `SoftwareSwitch` is one in this process, and `wiresum switch` is one as a command."""

from __future__ import annotations

from wiresum.switch.software_switch import SoftwareSwitch

__all__ = ["SoftwareSwitch"]
