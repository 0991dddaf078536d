from __future__ import annotations

from wiresum.cli.doctor.finding import LINE_CHARACTERS, note, ok, passed, problem, warning


def test_a_finding_says_what_why_and_what_to_do_in_lines_that_fit() -> None:
    finding = warning("mtu", "word " * 40, "because", "do that")
    lines = finding.text().splitlines()
    assert lines[0].startswith("  warning  word word")
    assert lines[-2:] == ["           why: because", "           do:  do that"]
    assert max(map(len, lines)) <= LINE_CHARACTERS


def test_what_a_stranger_sent_cannot_colour_the_terminal() -> None:
    assert "\x1b" not in note("x", "a\x1b[31mb").text()


def test_only_a_problem_means_that_it_does_not_work() -> None:
    found = [ok("x", ""), note("x", ""), warning("x", "")]
    assert passed(found)
    assert not passed([*found, problem("x", "")])


def test_scripts_get_the_level_by_name() -> None:
    said = {"level": "ok", "check": "cores", "what": "8 cores", "why": "", "advice": ""}
    assert ok("cores", "8 cores").as_dict() == said
