"""The operators' pages agree with the code: tables with P4Info, metrics with the collector."""

from __future__ import annotations

import contextlib
import re
from importlib import resources
from pathlib import Path

from finsy.proto import p4i
from google.protobuf import text_format

from wiresum import join
from wiresum.controller import JoinServer
from wiresum.controller.driver import REASONS
from wiresum.controller.metrics import CertificateCollector, LoopCollector, ReportCollector
from wiresum.switch.metrics import DataplaneCollector
from wiresum.switch.software_switch import SoftwareSwitch

DOCS = Path(__file__).parents[3] / "docs"


def program() -> p4i.P4Info:
    return text_format.Parse(
        resources.files("wiresum.compiled").joinpath("v1model.p4info.txtpb").read_text(), p4i.P4Info()
    )


def row_of(page: str, name: str) -> str:
    (row,) = re.findall(rf"^\| `{name}` \|.*$", page, re.MULTILINE)
    return str(row)


def test_every_table_is_documented_with_its_size_key_and_actions() -> None:
    page = (DOCS / "tables.md").read_text()
    info = program()
    actions = {action.preamble.id: action for action in info.actions}
    for table in info.tables:
        row = row_of(page, table.preamble.name)
        assert f"| {table.size} |" in row
        for field in table.match_fields:
            assert f"`{field.name}`" in row, f"{table.preamble.name}.{field.name}"
        for reference in table.action_refs:
            action = actions[reference.id]
            if action.preamble.name != "NoAction":
                parameters = ", ".join(parameter.name for parameter in action.params)
                assert f"`{action.preamble.name}{f'({parameters})' if parameters else ''}`" in row


def test_every_counter_and_register_is_documented_with_its_size() -> None:
    page = (DOCS / "tables.md").read_text()
    info = program()
    for counter in info.counters:
        assert f"| {counter.size} |" in row_of(page, counter.preamble.name)
    registers = page.partition("## Registers")[2]
    for register in info.registers:
        assert f"`{register.preamble.name}`" in registers
        assert f"{register.size} entries" in registers


def test_the_drop_reasons_are_documented_in_order() -> None:
    page = (DOCS / "tables.md").read_text()
    listed = re.findall(r"^\| (\d) \| ([\w ]+) \|", page, re.MULTILINE)
    assert listed == [(str(index), reason.replace("_", " ")) for index, reason in enumerate((*REASONS, "other"))]


def test_every_metric_is_documented() -> None:
    page = (DOCS / "operations.md").read_text()
    worker = join.WorkerReport(state="attending", certificate_expires_at=1.0)
    job = join.JobReport(packets={"stale": 1}, workers=[worker])
    switch = join.SwitchReport(stray_packets={"unknown": 1})
    report = join.Report(jobs=[job], switches=[switch], service=join.ServiceReport(refusals={"not_found": 1}))
    with contextlib.closing(SoftwareSwitch(port=0, threads=1)) as device:
        server = JoinServer(device)
        collectors = (
            ReportCollector(lambda: report), DataplaneCollector(device.stats), LoopCollector(server),
            CertificateCollector({"service": Path("/nowhere")}),
        )  # fmt: skip
        families = [family for collector in collectors for family in collector.collect()]
    names = {sample.name for family in families for sample in family.samples}
    assert len(names) > 20
    assert {name for name in names if f"`{name}" not in page} == set()
