"""The control plane's part in data keys: one at a time, on every node first, never back."""

from __future__ import annotations

import pytest

from clustor.control import (
    ActivateDek,
    AdvanceKeyEpochs,
    DekFacts,
    DekGrant,
    ForgetDek,
    GrantDek,
    RefusalCode,
    ReportDekReady,
    find,
    grant_to_learn,
    plan_deks,
    waits_for,
)
from clustor.control.key_epochs import KeyEpochs
from clustor.control.key_grants import WAIT_MS_MAX
from tests.clustor.control.plane import OBSERVER, Plane, node_identity

FACTS = DekFacts(epoch=1, activated_at_ms=0, period_ms=1_000)


def grant(epoch: int) -> GrantDek:
    return GrantDek(epoch=epoch, wrapped="ab" * 40, kek_fingerprint="0123", mac_epoch=epoch)


def cluster() -> Plane:
    plane = Plane()
    plane.add_nodes(3)
    return plane


def ready(plane: Plane, epoch: int, *nodes: int) -> None:
    for node in nodes:
        plane.done(ReportDekReady(node_id=node, epoch=epoch), by=node_identity(node))


def test_a_key_is_activated_when_the_last_node_has_it() -> None:
    plane = cluster()
    plane.done(grant(2))
    ready(plane, 2, 1, 2)
    assert plane.refused(ActivateDek(epoch=2, activates_at=9)) is RefusalCode.NOT_READY
    ready(plane, 2, 3)
    plane.done(ActivateDek(epoch=2, activates_at=9))
    held = find(plane.machine.kv, KeyEpochs, "newest")
    assert held is not None and held.parts() == (1, 2, 2)
    again = plane.done(ActivateDek(epoch=2, activates_at=500))
    assert again["activates_at"] == 9  # what nodes may have read does not change


def test_one_key_is_on_its_way_at_a_time_and_epochs_rise() -> None:
    plane = cluster()
    plane.done(AdvanceKeyEpochs(kek_version=1, dek_epoch=4, integrity_mac_epoch=1))
    assert plane.refused(grant(4)) is RefusalCode.KEY_EPOCH_REPLAY
    plane.done(grant(5))
    assert plane.refused(grant(6)) is RefusalCode.IN_USE


def test_a_key_is_forgotten_only_when_it_is_gone_everywhere() -> None:
    plane = cluster()
    plane.done(grant(2))
    assert plane.refused(ForgetDek(epoch=2)) is RefusalCode.IN_USE
    assert find(plane.machine.kv, DekGrant, 2) is not None


def test_who_may_not_grant_keys() -> None:
    assert cluster().refused(grant(2), by=OBSERVER) is RefusalCode.UNAUTHORIZED
    plane = cluster()
    plane.done(grant(2))
    other = ReportDekReady(node_id=2, epoch=2)
    assert plane.refused(other, by=node_identity(1)) is RefusalCode.UNAUTHORIZED


@pytest.mark.parametrize(("now_ms", "due"), [(999, False), (1_000, True)])
def test_the_first_grant_is_due_a_period_after_the_ring_was_made(now_ms: int, due: bool) -> None:
    found = plan_deks(cluster().machine.kv, FACTS, now_ms, grant)
    assert found == (grant(2) if due else None)


def test_a_key_that_waits_for_a_node_is_noticed_after_a_minute() -> None:
    plane = cluster()
    plane.done(grant(2))
    ready(plane, 2, 1, 3)
    assert waits_for(plane.machine.kv, plane.now_ms + WAIT_MS_MAX - 1) is None
    assert waits_for(plane.machine.kv, plane.now_ms + WAIT_MS_MAX) == (2, [2])
    ready(plane, 2, 2)
    assert waits_for(plane.machine.kv, plane.now_ms + WAIT_MS_MAX) is None


def test_a_node_learns_what_it_missed_in_order() -> None:
    plane = cluster()
    for epoch in (2, 3):
        plane.done(grant(epoch))
        ready(plane, epoch, 1, 2, 3)
        plane.done(ActivateDek(epoch=epoch, activates_at=epoch))
    learned = [grant_to_learn(plane.machine.kv, known) for known in (1, 2, 3)]
    assert [each.epoch if each else None for each in learned] == [2, 3, None]
