"""Switches that run our P4 program, driven over P4Runtime. Needs the extra `wiresum[controller]`."""

from __future__ import annotations

from wiresum.controller.p4runtime import device_config
from wiresum.controller.p4runtime.client import STANDBY_ID, Client
from wiresum.controller.p4runtime.device import P4Device
from wiresum.controller.p4runtime.device_config import Pipeline
from wiresum.controller.p4runtime.p4runtime_switch import P4RuntimeSwitch
from wiresum.controller.p4runtime.sizes import PipelineError
from wiresum.controller.p4runtime.target import Target, targets_of
from wiresum.controller.switches import Host

__all__ = [
    "STANDBY_ID",
    "Client",
    "Host",
    "P4Device",
    "P4RuntimeSwitch",
    "Pipeline",
    "PipelineError",
    "Target",
    "device_config",
    "targets_of",
]
