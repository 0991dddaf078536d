"""The switch in software: `SoftwareSwitch` runs a switch in this process, `wiresum switch` in a process of its own."""

from __future__ import annotations

from wiresum.switch.software_switch import SoftwareSwitch

__all__ = ["SoftwareSwitch"]
