"""Would a move that runs be allowed to begin now? And who hears of followers that stay behind."""

from __future__ import annotations

import msgspec

from clustor.control import (
    ClusterConfig,
    DrainNode,
    LagAlert,
    NodeLoad,
    Placement,
    RefusalCode,
    ReportLag,
    ReportSilence,
    find,
    plan_lag_report,
    why_no_survival,
)
from clustor.control.reports import ReportNode
from clustor.control.survival import health_ratio, quorum_ratio
from clustor.control.types import MILLION
from tests.clustor.control.plane import Plane, node_identity, settled_plane
from tests.clustor.control.samples import SAMPLES


def verdict(plane: Plane, **changed: object) -> str:
    placement = find(plane.machine.kv, Placement, 1)
    assert placement is not None
    return why_no_survival(plane.machine.kv, msgspec.structs.replace(placement, **changed))


def test_a_move_goes_on_while_a_quorum_of_its_new_voters_is_well() -> None:
    plane = settled_plane()
    assert verdict(plane) == ""
    plane.done(DrainNode(node_id=1, draining=True))
    assert verdict(plane) == ""
    plane.done(DrainNode(node_id=2, draining=True))
    assert "H is 0.50" in verdict(plane)
    assert verdict(plane, override_ref="o1") == "", "somebody signed for it"
    plane.done(DrainNode(node_id=2, draining=False))
    report = SAMPLES["ReportNode"]
    assert isinstance(report, ReportNode)
    load = NodeLoad(utilization=0, disk_bytes=1, disk_free_bytes=1, groups_hosted=0, groups_led=0)
    said = msgspec.structs.replace(report, node_id=2, load=load)
    plane.done(said, by=node_identity(2))
    assert verdict(plane) == ""
    plane.done(ReportSilence(node_id=2))
    assert "H is 0.50" in verdict(plane), "who is silent is not well"


def test_the_loss_of_one_zone_must_leave_a_quorum() -> None:
    plane = settled_plane()
    store = plane.machine.kv
    config = find(store, ClusterConfig, "config")
    assert config is not None and not config.development
    voters = (1, 4)
    found = find(store, Placement, 1)
    assert found is not None
    narrow = msgspec.structs.replace(found.members, voters=voters)
    assert "Q is 0" in verdict(plane, members=narrow)
    assert quorum_ratio((), {}) < MILLION
    assert health_ratio((9,), {}, ()) == 0, "a node that is not registered is not well"


def test_an_alert_is_raised_kept_true_and_taken_back_by_who_leads() -> None:
    plane = settled_plane()
    raised = ReportLag(partition_id=1, node_id=1, term=3, followers=(3, 2), lag_bytes=9)

    def held() -> LagAlert | None:
        return find(plane.machine.kv, LagAlert, 1)

    assert plan_lag_report(None, raised) is raised
    plane.done(raised, by=node_identity(1))
    first = held()
    assert first is not None and first.followers == (2, 3)
    assert plan_lag_report(first, msgspec.structs.replace(raised, lag_bytes=99)) is None
    old = msgspec.structs.replace(raised, node_id=2, term=2, followers=())
    assert plane.refused(old, by=node_identity(2)) is RefusalCode.CONFLICT
    plane.now_ms += 1_000
    fewer = msgspec.structs.replace(raised, node_id=2, term=4, followers=(3,))
    plane.done(fewer, by=node_identity(2))
    second = held()
    assert second is not None and second.since == first.since
    over = msgspec.structs.replace(fewer, followers=())
    assert plan_lag_report(second, over) is over
    plane.done(over, by=node_identity(2))
    assert held() is None
    assert plan_lag_report(None, over) is None
    stranger = msgspec.structs.replace(raised, node_id=4, term=9)
    assert plane.refused(stranger, by=node_identity(4)) is RefusalCode.MEMBERSHIP_MISMATCH
