from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from wiresum.agent.config import OTHER_VARIABLES, settings_of
from wiresum.cli.settings import settings


def test_every_setting_is_explained_with_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIRESUM_THREADS", "3")
    monkeypatch.setenv("WIRESUM_JOB_TOKEN", "12345")
    shown = CliRunner().invoke(settings, []).output
    for variable in [setting.variable for setting in settings_of().values()] + list(OTHER_VARIABLES):
        assert re.search(rf"^{variable}( |$)", shown, re.MULTILINE)
    assert "3   (from the environment)" in shown
    assert "12345" not in shown


def test_json_lists_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIRESUM_INSECURE", "on")
    shown = json.loads(CliRunner().invoke(settings, ["--json"]).output)
    assert shown["WIRESUM_INSECURE"] is True and shown["WIRESUM_BITS"] == 32


def test_a_misspelt_variable_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIRESUM_THREAD", "3")
    result = CliRunner().invoke(settings, [])
    assert result.exit_code == 1 and "is WIRESUM_THREADS meant?" in result.output
