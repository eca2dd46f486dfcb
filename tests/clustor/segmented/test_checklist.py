"""The testing checklist of the specification, item by item, and the tests that keep it.

The items are those of segmented-quorum.md, "Testing Checklist". A test that is renamed or removed
must be followed here, so that no item is ever left without one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.clustor.segmented import (
    test_crash,
    test_machine,
    test_master,
    test_quorum,
    test_recovery,
    test_suspicions,
    test_transfer,
)

CHECKLIST: dict[str, list[Callable[..., None]]] = {
    "Quorum edge cases: duplicates": [
        test_quorum.test_duplicates_and_stale_acknowledgements_change_nothing,
    ],
    "Quorum edge cases: stale acknowledgements": [
        test_quorum.test_duplicates_and_stale_acknowledgements_change_nothing,
        test_quorum.test_a_truncated_suffix_takes_its_acknowledgements_with_it,
        test_suspicions.test_what_a_replica_said_of_single_entries_is_forgotten_when_it_leaves,
    ],
    "Quorum edge cases: out-of-order replicas": [
        test_quorum.test_replicas_may_acknowledge_single_entries_out_of_order,
        test_quorum.test_both_forms_of_acknowledgement_add_up,
    ],
    "Quorum edge cases: majority vs threshold vs custom policies": [
        test_quorum.test_a_policy_decides_on_the_members_that_acknowledged,
        test_quorum.test_masks_decide_as_sets_do_and_one_ack_more_never_hurts,
        test_quorum.test_a_custom_policy_must_be_registered_and_once,
    ],
    "Master policies: automatic hashing": [
        test_master.test_the_highest_draw_of_the_documented_bytes_wins,
        test_master.test_a_change_of_membership_moves_only_what_it_must,
    ],
    "Master policies: fixed overrides": [
        test_master.test_a_fixed_master_stays_and_a_disabled_one_is_nobody,
    ],
    "Master policies: disabled mode": [
        test_master.test_a_fixed_master_stays_and_a_disabled_one_is_nobody,
    ],
    "Truncation: ensure we never drop entries still required by any partition": [
        test_recovery.test_the_log_is_cut_up_to_what_every_partition_has_and_never_past_it,
        test_recovery.test_a_partition_without_its_quorum_holds_the_log_though_its_file_is_durable,
        test_suspicions.test_what_was_not_replayed_yet_is_not_cut_away,
        test_machine.TestSegmentedMachine.runTest,
    ],
    "Recovery: partial partition flush, rollback to the lowest safe raft index": [
        test_recovery.test_a_partial_flush_rolls_back_to_the_lowest_safe_raft_index,
        test_recovery.test_c18_what_the_ledger_proves_is_applied_again_and_never_dropped,
        test_crash.test_after_a_crash_anywhere_partitions_hold_what_was_acknowledged,
        test_transfer.test_a_crash_anywhere_in_an_import_leaves_the_old_set_or_the_new,
    ],
}


@pytest.mark.parametrize("item", CHECKLIST)
def test_every_item_of_the_checklist_has_its_tests(item: str) -> None:
    assert CHECKLIST[item] and all(map(callable, CHECKLIST[item]))
