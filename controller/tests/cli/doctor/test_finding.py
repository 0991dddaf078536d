from __future__ import annotations

from wiresum.cli.doctor.finding import LINE_CHARACTERS, note, ok, passed, problem, warning


def test_a_finding_prints_its_message_reason_and_advice_in_wrapped_lines() -> None:
    finding = warning("mtu", "word " * 40, "because", "do that")
    lines = finding.text().splitlines()
    assert lines[0].startswith("  warning  word word")
    assert lines[-2:] == ["           why: because", "           do:  do that"]
    assert max(map(len, lines)) <= LINE_CHARACTERS


def test_escape_sequences_in_received_text_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in note("x", "a\x1b[31mb").text()


def test_only_problems_make_the_result_a_failure() -> None:
    found = [ok("x", ""), note("x", ""), warning("x", "")]
    assert passed(found)
    assert not passed([*found, problem("x", "")])


def test_json_gives_the_level_by_name() -> None:
    said = {"level": "ok", "check": "cores", "what": "8 cores", "why": "", "advice": ""}
    assert ok("cores", "8 cores").as_dict() == said
