"""Switches that run our P4 program, driven over P4Runtime. Needs the extra `wiresum[controller]`."""

from __future__ import annotations

from wiresum.controller.p4runtime.client import Client
from wiresum.controller.p4runtime.host import PORT_MAX, Host
from wiresum.controller.p4runtime.p4runtime_switch import P4RuntimeSwitch

__all__ = ["PORT_MAX", "Client", "Host", "P4RuntimeSwitch"]
