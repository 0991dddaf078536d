"""The table of docs/security.md says in each cell who can do what, and the list below what nobody of these can. Here
are the tests of each cell and line, and each exists."""

from __future__ import annotations

import ast
import re

from wiresum_lab import REPOSITORY

PAGE = (REPOSITORY / "docs" / "security.md").read_text()
USUAL_FOLDER = "controller/tests/controller/"
COLUMNS = ["", "a tenant", "a key in a hostile hand", "an operator"]
TESTS = {
    "security/test_every_call.py": {
        1: "test_every_call_with_every_certificate_gives_the_result_in_the_table",
        2: "test_a_standby_refuses_the_same_callers_and_turns_the_others_away",
    },
    "soft_switch/tests/p4runtime/test_server.py": {
        3: "test_each_method_can_only_be_called_by_its_roles",
        35: "test_one_certificate_keeps_no_other_out_by_calls_or_connections",
        51: "test_a_revoked_controllers_stream_ends_and_others_go_on",
    },
    "laboratory/test_key_in_a_hostile_hand.py": {
        4: "test_it_can_begin_and_spoil_jobs_of_its_tenant_within_the_quota_and_operators_see_who_and_revoke",
        7: "test_it_cannot_touch_a_running_job",
        18: "test_packets_with_the_jobs_own_key_change_no_sum",
        22: "test_it_cannot_have_sums_sent_to_another_host_or_act_for_another_tenant",
    },
    "laboratory/test_certificates_in_use.py": {
        5: "test_a_workers_certificate_expires_under_its_running_job_and_is_renewed",
    },
    "jobs/test_asking.py": {
        6: "test_a_certificate_without_a_tenant_joins_only_jobs_of_its_own_name",
    },
    "jobs/test_waiting.py": {
        8: "test_an_idle_lease_is_revoked_only_when_others_wait",
    },
    "security/test_revocation.py": {
        9: "test_a_tenant_sees_its_own_ended_jobs_and_an_operator_sees_all",
        48: "test_all_that_a_revoked_certificate_holds_ends",
        49: "test_a_revoked_worker_is_removed_from_its_jobs_and_cannot_join_again",
        50: "test_a_standby_ends_what_a_revoked_certificate_holds",
    },
    "test_slow_readers.py": {
        10: "test_slow_readers_do_not_keep_prometheus_out_and_end",
    },
    "laboratory/test_upgrades.py": {
        11: "test_in_the_documented_order_jobs_run_on_and_new_ones_begin",
    },
    "bmv2_tests/test_doors.py": {
        12: "test_the_commands_of_the_page_open_the_doors_that_it_lists_and_no_stranger_comes_in",
    },
    "laboratory/test_doors.py": {
        13: "test_nothing_listens_but_what_the_table_says",
    },
    "lab/tests/house/test_doors.py": {
        14: "test_bf_switchd_is_always_told_to_listen_on_its_own_host_alone",
    },
    "security/test_forged_packets.py": {
        15: "test_forged_packets_are_counted_by_reason_and_change_no_sum",
        16: "test_the_key_is_useless_elsewhere",
        36: "test_malformed_messages_are_refused_and_counted_and_change_no_sum",
    },
    "lab/tests/namespaces/test_transports_under_attack.py": {
        17: "test_a_job_sums_exactly_while_a_host_forges_floods_and_sends_malformed_frames",
    },
    "security/test_later_jobs.py": {
        19: "test_a_misbehaving_worker_cannot_change_read_or_block_a_later_job",
    },
    "security/test_caller.py": {
        20: "test_a_worker_may_use_the_callers_address_or_those_in_its_certificate",
        21: "test_a_caller_over_loopback_may_use_the_hosts_addresses_and_those_that_it_names",
    },
    "security/test_greedy_tenants.py": {
        23: "test_jobs_that_ask_for_everything_get_half_of_each_switch",
    },
    "jobs/test_reservations.py": {
        24: "test_a_created_job_that_nobody_joins_expires",
    },
    "host_agent/tests/agent/test_fallback.py": {
        25: "test_it_serves_the_jobs_of_its_process_alone_by_name_tenant_and_secret",
        27: "test_nobody_without_the_jobs_secret_poses_as_its_fallback_whatever_the_certificate",
    },
    "laboratory/test_fallback.py": {
        26: "test_a_hostile_tenant_gets_nothing_at_the_fallback_of_another_job",
        28: "test_a_tenant_that_listens_at_the_port_before_is_told_nothing_and_the_error_says_so",
    },
    "laboratory/test_thousand_jobs.py": {
        29: "test_a_thousand_jobs_get_their_turn",
    },
    "jobs/test_quota.py": {
        30: "test_operators_alone_say_which_job_comes_before_others",
    },
    "security/test_front.py": {
        31: "test_who_only_connects_gives_way_to_others_of_its_address",
        32: "test_handshakes_that_come_to_nothing_use_up_the_tokens_of_their_address_alone",
        33: "test_a_tenant_that_takes_all_that_it_can_keeps_no_other_out",
    },
    "security/test_interceptor.py": {
        34: "test_a_tenant_with_as_many_calls_as_it_can_have_keeps_no_other_out",
    },
    "jobs/test_refusal.py": {
        37: "test_an_address_is_one_that_the_worker_could_have_or_is_refused",
    },
    "laboratory/test_memory.py": {
        38: "test_answers_that_nobody_reads_are_small",
        39: "test_positions_of_jobs_that_never_go_on_are_bounded",
    },
    "jobs/test_going_on.py": {
        40: "test_a_job_whose_workers_ask_for_moves_too_often_waits_and_others_do_not",
    },
    "jobs/test_moves_and_restarts.py": {
        41: "test_a_number_that_no_service_gave_ends_the_job_also_after_a_restart",
    },
    "jobs/test_extremes.py": {
        42: "test_any_integer_in_any_state_leaves_what_can_be_reported_and_taken_over",
    },
    "plugins/horovod/tests/test_objects.py": {
        43: "test_a_pickle_of_somebody_without_the_jobs_secret_runs_no_code",
    },
    "security/test_audit.py": {
        44: "test_a_flood_of_an_hour_leaves_yesterdays_lines_of_others",
        45: "test_the_first_refusal_of_each_kind_and_all_acts_of_operators_are_written",
        47: "test_a_line_names_the_certificate_whatever_its_holder_says",
    },
    "jobs/test_records.py": {
        46: "test_a_created_job_remembers_its_members_and_who_may_join_after_a_restart",
    },
}
"""The names of tests by number, in files of the usual folder, or of the repository."""
PROOFS = {
    "call a service": "1 2 3 | 4 5 | 1 2 3",
    "join a job that forms": "1 6 | 4 | 1",
    "end a job": "1 8 | 4 7 8 | 1",
    "see jobs": "9 | 9 | 1",
    "see names of jobs": "10 | 10 | 10",
    "drain a switch": "1 | 7 | 11",
    "have sums sent to another host": "20 21 | 22 21 | 1",
    "take slots": "23 | 4 | 24",
    "join, or take anything": "1 25 26 | 1 25 | 1",
    "come before others": "30 | 30 | 30",
    "keep others away by connections": "31 32 33 34 35 | 33 34 | 33 34",
    "... by the memory": "38 39 | 38 39 | 38",
    "... by moves": "40 | 40 | 1",
    "run code at a worker": "43 | 43 | 43",
    "push others' lines": "44 | 44 | 45",
    "join a job that runs": "1 | 7 | 1",
    "program a switch": "3 12 13 14 | 3 12 13 14 | 3 12 13 14",
    "change a sum by packets": "15 16 17 | 15 17 18 | 15 16 17",
    "change a sum of a later job": "19 | 19 | 1",
    "pose as a job's fallback": "27 28 | 27 | 27",
    "keep jobs out with a queue": "29 | 29 | 1",
    "keep others away by malformed messages": "36 37 | 36 37 | 1 36",
    "end a controller": "41 | 41 | 42",
    "keep Prometheus": "10 | 10 | 10",
    "act under another name": "46 47 | 4 47 | 47",
    "go on after revocation": "48 49 | 4 48 | 48 50 51",
}
"""The numbers of the tests of each row or item that begins so, for each column."""
OF_STRANGERS = "1 2 3 10 12 13 14 15 16 17 27 31 32 43"
"""The tests of the sentence on strangers."""


def rows() -> list[list[str]]:
    section = PAGE.partition("\n## Who can do what\n")[2].partition("\n## ")[0]
    found = [line for line in section.splitlines() if line.startswith("|")]
    nobody = [[item, *["cannot"] * 3] for item in re.findall(r"^- (.*)", section, re.MULTILINE)]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found] + nobody


def functions_of(path: str) -> set[str]:
    for folder in ("", USUAL_FOLDER):
        file = REPOSITORY / folder / path
        if file.is_file():
            return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}
    return set()


def test_each_cell_says_can_or_cannot_and_has_its_tests() -> None:
    heading, _, *found = rows()
    assert heading == COLUMNS
    assert [ability for ability, *_ in found if not any(map(ability.startswith, PROOFS))] == []
    for (ability, *cells), (begin, proofs) in zip(found, PROOFS.items(), strict=True):
        assert ability.startswith(begin), "in the same order"
        assert all(re.match(r"can(not)?\b", cell) for cell in cells), ability
        assert [bool(each.split()) for each in proofs.split("|")] == [True] * (len(COLUMNS) - 1) == [True] * len(cells)
    assert "\nNone of these can\n\n- " in PAGE
    assert re.search(r"^A \*stranger\*.* can do nothing of all this", PAGE, re.MULTILINE)


def test_each_number_is_that_of_a_test_which_exists() -> None:
    used = {int(number) for proofs in (*PROOFS.values(), OF_STRANGERS) for number in re.findall(r"\d+", proofs)}
    numbers = [number for named in TESTS.values() for number in named]
    assert sorted(numbers) == sorted(used) == list(range(1, len(numbers) + 1))
    missing = [name for path, named in TESTS.items() for name in named.values() if name not in functions_of(path)]
    assert missing == []
