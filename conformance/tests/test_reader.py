"""The reader of the vectors, and rules for the files themselves."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from wiresum.conformance.frames import FrameChanges
from wiresum.conformance.reader import VectorError, load, load_all
from wiresum.conformance.scenarios import DROP_REASONS, End, Job, Member, Step, Verdict

HEAD = "scenario some_name\n"
JOB = "job 1 key=0xA0B0C0D0 workers=2 threads=2 lanes=4 slot_base=0 slots=4\n"
JOB_2 = "job 2 key=7 workers=1 threads=1 lanes=4 slot_base=4 slots=4\n"

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str) -> Path:
        path = tmp_path / "some.txt"
        path.write_text(text)
        return path

    return write_file


def step_of(write: Write, line: str) -> Step:
    (scenario,) = load(write(HEAD + JOB + JOB_2 + line))
    (step,) = scenario.steps
    return step


def test_a_packet_has_the_default_fields_of_the_format(write: Write) -> None:
    step = step_of(write, "1.1 DATA round=5 slot=2 words=ramp:0xFFFFFFFF:2 -> hold  # a comment\n")
    header = bytes.fromhex("10 00 0001 A0B0C0D0 01 00 0005 00000005 01020304 05060708")
    assert step.datagram == header + struct.pack("!4I", 0xFFFFFFFF, 1, 3, 5)
    assert (step.sender, step.source, step.port) == (Member(1, 1), Member(1, 1), Member(1, 1))
    assert step.thread == step.source_thread == 1, "slots 2 and 3 are the second thread's"
    assert (step.line, step.text) == (4, "1.1 DATA round=5 slot=2 words=ramp:0xFFFFFFFF:2 -> hold")
    assert not step.hardware_only


def test_every_field_can_be_set(write: Write) -> None:
    step = step_of(
        write,
        "1.0 META round=0xFFFFFFFF cell=0x1234 exponent=200 flags=3 tensor=1 chunk=2 version=15 job=9 key=8 worker=7"
        " thread=11 source=2.0 source_thread=7 -> drop unknown",
    )
    assert step.datagram == bytes.fromhex("F3 03 0009 00000008 07 C8 1234 FFFFFFFF 00000001 00000002")
    assert (step.source, step.thread, step.source_thread) == (Member(2, 0), 11, 7)
    assert (step.expectation.verdict, step.expectation.reason) == (Verdict.DROP, "unknown")


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("fill:0xFFFFFFFF", (0xFFFFFFFF,) * 4),
        ("ramp:10:0xFFFFFFFF", (10, 9, 8, 7)),
        ("alternate:1:2", (1, 2, 1, 2)),
        ("list:5", (5, 0, 0, 0)),
        ("list:1,2,3,0x10", (1, 2, 3, 16)),
    ],
)
def test_words_can_be_abbreviated(write: Write, words: str, values: tuple[int, ...]) -> None:
    assert step_of(write, f"1.0 DATA round=1 words={words} -> hold").datagram[24:] == struct.pack("!4I", *values)


def test_length_and_bytes_can_be_wrong_on_purpose(write: Write) -> None:
    whole = step_of(write, "1.0 DATA round=1 words=fill:0x01020304 -> hold").datagram
    assert len(whole) == 40
    cut = step_of(write, "1.0 DATA round=1 words=fill:0x01020304 bytes=27 -> drop malformed")
    assert cut.datagram == whole[:27]
    assert step_of(write, "1.0 DATA round=1 words=fill:0x01020304 bytes=42 -> drop malformed").datagram == (
        whole + b"\0\0"
    )
    assert step_of(write, "1.0 RAW hex=00FF10 -> drop malformed").datagram == b"\x00\xff\x10"


def test_a_result_echoes_the_packet_except_for_kind_flags_and_exponent(write: Write) -> None:
    step = step_of(write, "1.1 EMPTY round=2 exponent=9 flags=1 tensor=5 -> multicast exponent=10 words=fill:1")
    expected = bytes.fromhex("12 00 0001 A0B0C0D0 01 0A 0000 00000002 00000005 05060708") + struct.pack(
        "!4I", 1, 1, 1, 1
    )
    assert step.expectation.datagram == expected
    assert step.expectation.receivers == (Member(1, 0), Member(1, 1))
    assert (step.expectation.verdict, step.expectation.reason) == (Verdict.MULTICAST, "admitted")


def test_a_resent_result_goes_to_its_sender_alone(write: Write) -> None:
    step = step_of(write, "1.1 META round=2 -> resend flags=2 exponent=3 chunk=6 bare")
    expected = bytes.fromhex("12 02 0001 A0B0C0D0 01 03 0000 00000002 01020304 00000006")
    assert step.expectation.datagram == expected
    assert step.expectation.receivers == (Member(1, 1),)
    assert step.expectation.reason == "resent"


def test_missing_echoes_the_question_except_for_kind_flags_and_exponent(write: Write) -> None:
    step = step_of(write, "1.1 QUESTION round=2 exponent=9 flags=1 tensor=5 -> missing")
    assert step.datagram[:2] == bytes.fromhex("14 01")
    expected = bytes.fromhex("15 00 0001 A0B0C0D0 01 00 0000 00000002 00000005 05060708")
    assert step.expectation.datagram == expected
    assert step.expectation.receivers == (Member(1, 1),)
    assert (step.expectation.verdict, step.expectation.reason) == (Verdict.MISSING, "resent")


def test_a_packet_at_another_ingress_port_is_for_hardware_only(write: Write) -> None:
    step = step_of(write, "1.1 META round=2 port=1.0 -> drop unknown")
    assert step.hardware_only
    assert (step.source, step.port) == (Member(1, 1), Member(1, 0))


def test_a_frame_may_be_odd(write: Write) -> None:
    step = step_of(
        write,
        "1.1 META round=2 mac=broadcast ip_length=20 udp_length=0xFFFF udp_checksum=none flip=300 trailer=7 cut=3"
        " -> drop malformed",
    )
    assert step.mac == "broadcast"
    assert step.changes == FrameChanges(20, 0xFFFF, without_udp_checksum=True, flip=300, trailer=7, cut=3)
    assert step_of(write, "1.1 META round=2 -> drop malformed").changes == FrameChanges()


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("1.1 META round=2 flip=300 -> drop malformed", True),
        ("1.1 META round=2 mac=broadcast -> pass", True),
        ("1.1 META round=2 trailer=3 -> hold", False),
        ("1.1 META round=2 version=3 -> drop malformed", False),
    ],
)
def test_a_host_refuses_what_is_wrong_with_a_frame_and_nothing_else(write: Write, line: str, refused: bool) -> None:
    step = step_of(write, line)
    assert (step.refused_by_hosts, step.hardware_only) == (refused, False)


def test_the_source_may_be_a_stranger(write: Write) -> None:
    assert step_of(write, "1.1 META round=2 source=stranger -> drop unknown").source is None


def test_a_scenario_lists_its_jobs_members_and_needed_features(write: Write) -> None:
    (scenario,) = load(write(HEAD + "needs diverged_flag\n" + JOB + JOB_2 + "1.0 META round=1 -> hold\n"))
    assert scenario.needs == {"diverged_flag", "meta"}
    assert [job.number for job in scenario.jobs] == [1, 2]
    assert scenario.members == (Member(1, 0), Member(1, 1), Member(2, 0))
    assert scenario.slots == 8


def test_a_scenario_proves_the_rules_that_its_comments_name(write: Write) -> None:
    packet = "1.0 META round=1 -> hold  # R3.12\n"
    first, second = load(
        write("# Of the file: R9.9.\n\n# R3.7, and R3.8\n" + HEAD + JOB + packet + "scenario other\n" + JOB + packet)
    )
    assert (first.rules, second.rules) == (("R3.7", "R3.8", "R3.12"), ("R3.12",))
    (bare,) = load(write(HEAD + JOB + "1.0 META round=1 -> hold\n"))
    assert bare.rules == ()


def test_a_job_may_reuse_the_slots_and_number_of_an_earlier_one(write: Write) -> None:
    next_job = "job 1 key=5 workers=3 threads=1 lanes=4 slot_base=2 slots=2\n"
    packet = "1.0 META round=1 -> hold\n"
    (scenario,) = load(write(HEAD + JOB + packet + "end 1\n1.1 META round=1 -> drop unknown\n" + next_job + packet))
    first, _, end, late, second, step = scenario.events
    assert isinstance(first, Job)
    assert isinstance(second, Job)
    assert isinstance(late, Step)
    assert isinstance(step, Step)
    assert end == End(first)
    assert (first.key, second.key) == (0xA0B0C0D0, 5)
    assert scenario.jobs == (first, second)
    assert scenario.members == (Member(1, 0), Member(1, 1), Member(1, 2))
    assert late.datagram[4:8] == first.key.to_bytes(4, "big"), "the packet is of the ended job"
    assert step.datagram[4:8] == second.key.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("1.0 DATA round=1 -> hold", "DATA needs words="),
        ("1.0 DATA words=fill:1 -> hold", "round= is missing"),
        ("1.0 DATA round=1 wrods=fill:1 words=fill:1 -> hold", "nothing here is called wrods"),
        ("1.0 DATA round=1 round=2 words=fill:1 -> hold", "round is given twice"),
        ("1.0 DATA round words=fill:1 -> hold", "expected NAME=VALUE, not 'round'"),
        ("1.0 DATA round=-1 words=fill:1 -> hold", "'-1' is no number"),
        ("1.0 DATA round=0xabc words=fill:1 -> hold", "'0xabc' is no number"),
        ("1.0 DATA round=0x100000000 words=fill:1 -> hold", "larger than 4294967295"),
        ("1.0 META round=1 exponent=256 -> hold", "larger than 255"),
        ("1.0 META round=1 thread=16 -> hold", "larger than 15"),
        ("1.0 META round=1 source_thread=16 -> hold", "larger than 15"),
        ("1.0 META round=1 bytes=1473 -> drop malformed", "larger than 1472"),
        ("1.0 META round=1 slot=1 cell=3 -> hold", "either slot= or cell="),
        ("1.0 DATA round=1 words=fill:1:2 -> hold", "fill has 1 numbers, not 2"),
        ("1.0 DATA round=1 words=list:1,2,3,4,5 -> hold", "up to 4 numbers, not 5"),
        ("1.0 DATA round=1 words=5 -> hold", "'5' begins with none of"),
        ("1.0 KIND round=1 -> hold", "'KIND' is no kind"),
        ("1.0 3 round=1 -> hold", "'3' is no kind"),
        ("1.0 4 round=1 -> hold", "'4' is no kind"),
        ("1.0 RAW hex=0 -> drop malformed", "RAW needs hex="),
        ("1.0 RAW hex=00 -> hold", "a RAW datagram can only be dropped"),
        ("1.2 META round=1 -> hold", "'1.2' is no JOB.WORKER"),
        ("3.0 META round=1 -> hold", "'3.0' is no JOB.WORKER"),
        ("1.0 META round=1 source=everybody -> hold", "source: 'everybody' is no JOB.WORKER"),
        ("1.0 META round=1 mac=worker -> pass", "mac: 'worker' is none of: broadcast"),
        ("1.0 META round=1 udp_checksum=0 -> hold", "udp_checksum: '0' is not 'none'"),
        ("1.0 META round=1 flip=8192 -> drop malformed", "larger than 8191"),
        ("1.0 META round=1 mac=broadcast -> pass bare", "nothing stands behind 'pass'"),
        ("1.0 META round=1 port=1.0 -> hold", "its sender's own port anyway"),
        ("1.0 META round=1", "expected 'job', 'end', 'needs', 'scenario', or a packet"),
        ("1.0 META round=1 -> -> hold", "expected 'job', 'end', 'needs', 'scenario', or a packet"),
        ("1.0 META round=1 ->", "a verdict behind it"),
        ("1.0 -> hold", "expected SENDER KIND"),
        ("1.0 META round=1 -> kept", "'kept' is no verdict"),
        ("1.0 META round=1 -> hold admitted", "nothing stands behind 'hold'"),
        ("1.0 QUESTION round=1 -> missing bare", "nothing stands behind it"),
        ("1.0 META round=1 -> missing", "'missing' answers a QUESTION"),
        ("1.0 META round=1 -> drop", "expected 'drop' and one of"),
        ("1.0 META round=1 -> drop late", "expected 'drop' and one of"),
        ("1.0 META round=1 -> multicast", "either words=... or is 'bare'"),
        ("1.0 META round=1 -> multicast words=fill:1 bare", "either words=... or is 'bare'"),
        ("1.0 META round=1 -> multicast bare slot=1", "nothing here is called slot"),
        (JOB.strip(), "job 1 is declared twice"),
        ("job 3 key=0 workers=1 threads=1 lanes=4 slot_base=8 slots=4", "key 0 is nobody's"),
        ("end", "expected 'end' and the number of a job that runs"),
        ("end 3", "expected 'end' and the number of a job that runs"),
        ("end 1 2", "expected 'end' and the number of a job that runs"),
        ("job 3", "key= is missing"),
        ("job", "expected 'job NUMBER"),
        ("job 3 key=1 workers=33 threads=1 lanes=4 slot_base=8 slots=4", "1 to 32 workers"),
        ("job 3 key=1 workers=1 threads=3 lanes=4 slot_base=8 slots=4", "powers of two"),
        ("job 3 key=1 workers=1 threads=8 lanes=4 slot_base=8 slots=4", "powers of two"),
        ("job 3 key=1 workers=1 threads=1 lanes=4 slot_base=8 slots=6", "powers of two"),
        ("job 3 key=1 workers=1 threads=1 lanes=0 slot_base=8 slots=4", "1 to 360 lanes"),
        ("job 3 key=1 workers=1 threads=1 lanes=4 slot_base=61 slots=4", "in the first 64 slots"),
        ("job 3 key=1 workers=1 threads=1 lanes=4 slot_base=7 slots=1", "overlaps that of job 2"),
    ],
)
def test_an_invalid_line_is_named_with_its_file(write: Write, line: str, complaint: str) -> None:
    path = write(HEAD + JOB + JOB_2 + line + "\n" + "1.0 META round=1 -> hold\n")
    with pytest.raises(VectorError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:4: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("", 1, "no scenario in this file"),
        ("# nothing\n\n", 1, "no scenario in this file"),
        (JOB, 1, "begins with a scenario line"),
        ("scenario Some-Name\n", 1, "lower case with underscores"),
        ("scenario\n", 1, "lower case with underscores"),
        (HEAD + JOB, 1, "scenario some_name has no packet"),
        (HEAD + JOB + "end 1\n", 1, "scenario some_name has no packet"),
        (HEAD + "needs wings\n", 2, "expected 'needs' and one of: diverged_flag"),
        (HEAD + JOB + "needs diverged_flag\n", 3, "'needs' must stand before the first job"),
        (HEAD + JOB + "end 1\nend 1\n", 4, "a job that runs"),
        (HEAD + JOB + "end 1\n" + JOB.replace("job 1", "job 9"), 4, "0xa0b0c0d0 was that of a job in the same slots"),
        (HEAD + "1.0 META round=1 -> hold\n", 2, "'1.0' is no JOB.WORKER"),
    ],
)
def test_an_invalid_file_is_named_with_the_line(write: Write, text: str, line: int, complaint: str) -> None:
    path = write(text)
    with pytest.raises(VectorError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert complaint in str(caught.value)


def test_a_folder_without_vectors_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(VectorError, match="no scenario"):
        load_all(tmp_path)


def test_a_duplicate_name_is_an_error(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(HEAD + JOB + "1.0 META round=1 -> hold\n")
    with pytest.raises(VectorError, match=r"b\.txt:1: a\.txt:1 has a scenario some_name too"):
        load_all(tmp_path)


def test_the_files_contain_every_verdict_and_every_reason() -> None:
    expectations = [step.expectation for scenario in load_all() for step in scenario.steps]
    assert {expectation.verdict for expectation in expectations} == set(Verdict)
    assert {expectation.reason for expectation in expectations} == DROP_REASONS | {"admitted", "resent", ""}


def test_steps_for_hardware_alone_are_all_refused_there() -> None:
    steps = [step for scenario in load_all() for step in scenario.steps if step.hardware_only]
    assert steps
    assert all(step.expectation.reason == "unknown" for step in steps)
