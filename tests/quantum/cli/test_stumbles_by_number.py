"""Issue 20 by its numbers: each line of it has tests, and here stands which."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

LINES = {
    "1: it starts for everybody": ["interop/test_starts_everywhere.py::test_an_ordinary_user"],
    "2: what is printed can be pasted": [
        "quantum/cli/test_app.py::test_off_the_path_the_shorter_path_is_printed",
        "quantum/cli/test_app.py::test_make_install_puts_the_command_on_the_path",
        "interop/test_starts_everywhere.py::test_an_ordinary_user",
    ],
    "3: a small or full disk": [
        "interop/test_small_disk.py::test_a_disk_that_is_too_small_is_one_line",
        "interop/test_small_disk.py::test_a_fresh_directory_is_small_and_status_tells",
    ],
    "4: bad paths": ["quantum/cli/test_bad_paths.py::test_a_bad_path_is_one_line"],
    "5: quick help, and a version": [
        "quantum/cli/test_app.py::test_what_is_quick_imports_little",
        "quantum/cli/test_app.py::test_the_version_tells_commit_python_and_how_it_was_built",
    ],
    "6: healthy looks healthy": ["quantum/cli/test_healthy_and_ill.py::test_why_a_client"],
    "7: the cluster's commands": [
        "interop/test_cluster_commands.py::test_it_says_that_it_is_ready_where_and_what_to_try",
        "interop/test_cluster_commands.py::test_a_node_that_hangs_is_named_soon",
        "interop/test_cluster_commands.py::test_nodes_that_lost_their_supervisor_are_named",
        "quantum/cli/test_supervisor_stops.py::test_a_node_that_never_stops_is_killed",
    ],
    "8: certificates": [
        "quantum/cli/test_cert.py::test_a_wrong_directory_gets_no_authority_of_its_own",
        "quantum/cli/test_cert.py::test_the_line_to_try_names_the_port",
        "quantum/edge/test_server_names.py::test_",
    ],
    "9: quotas and access lists": [
        "interop/test_access_and_quotas.py::test_quotas_change_as_named",
        "interop/test_access_and_quotas.py::test_one_denied_topic_costs_nothing_else",
        "quantum/cli/test_advised_settings.py::test_config_explain_knows_each",
        "quantum/admin/test_what_is_not_shown.py::test_the_first_change_of_quotas",
    ],
    "10: clients outlive a leader": [
        "interop/test_mqtt_failover.py::test_a_publisher_goes_on_within_two_seconds",
        "interop/test_clients_outlive_leaders.py::test_clients_of_other_nodes_stay_connected",
    ],
    "11: a table that is behind": [
        "quantum/lake/jobs/test_what_users_meet.py::test_item_11_",
    ],
    "12: keys": ["quantum/lake/test_key_check.py::test_item_12_"],
    "13: views, and jobs in this process": ["quantum/lake/test_key_check.py::test_item_13_"],
    "15: metrics": [
        "interop/test_deploy.py::test_every_metric_that_an_expression_names_is_there",
        "interop/test_deploy.py::test_promtool_takes_the_rules",
    ],
    "16: the broker below /v1": [
        "interop/test_messages_by_request.py::test_item_16_",
        "quantum/admin/test_broker_routes.py::test_roles_decide",
    ],
    "a second CONNECT, and wills": ["interop/test_wills_real.py::test_a_takeover_is_quiet"],
    "a mosquitto bridge": ["interop/test_mosquitto_bridge.py::test_what_one_side_publishes"],
    "PUBLISH and PUBREL together": [
        "quantum/serving/test_clients_expect.py::test_a_publish_and_its_release_may_come_together"
    ],
    "a topic of 129 levels": [
        "quantum/serving/test_clients_expect.py::test_how_deep_a_topic_may_be_is_a_setting"
    ],
    "a full queue": ["quantum/serving/test_full_queues.py::test_only_what_matches_waits"],
    "a flood to one subscriber": [
        "quantum/serving/test_slowing.py::test_a_subscriber_that_does_not_read_stops_its_publisher"
    ],
    "retained behind SUBACK": [
        "quantum/serving/test_clients_expect.py::test_suback_comes_before_what_is_retained"
    ],
    "a listener's policy": ["interop/test_listener_policy.py::test_a_user_comes_over_tls"],
    "rounds of a SUBSCRIBE": [
        "quantum/serving/test_subscribe_rounds.py::test_subscribe_takes_one_round",
        "interop/test_subscribe_entries.py::test_a_subscription_is_one_entry_of_each_partition",
    ],
    "pages": [
        "interop/test_book.py::test_the_first_page_does_what_it_shows",
        "quantum/admin/test_book.py::test_pages_have_their_kind_a_tag_and_a_policy",
    ],
    "own stumbles": ["quantum/cli/test_stumbles.py::test_"],
}


@pytest.mark.parametrize("line", LINES)
def test_the_line_has_its_tests(line: str) -> None:
    for named in LINES[line]:
        file, _, name = named.partition("::")
        text = (ROOT / "tests" / file).read_text()
        assert re.search(rf"def {name}", text), named


def test_item_14_the_readme_leads_to_the_lake_and_says_what_its_tests_need() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "(docs/lake.md)" in readme
    assert readme.index("make setup-dev  ") < readme.index(".venv/bin/pytest")
