"""Where each group stops that is brought back out of an archive."""

from __future__ import annotations

from quantum.archive import PrgId
from quantum.node.archived_groups import CONTROL
from quantum.node.archived_log import PointInTime
from quantum.node.restoring import RestorePlan


def test_a_backup_s_entry_goes_before_the_common_place() -> None:
    plan = RestorePlan(points={"dev/1": 9})
    assert plan.point_of(PrgId("dev", 1)).index == 9
    assert plan.point_of(PrgId("dev", 2)) == plan.point


def test_a_tenant_s_entry_means_nothing_to_the_control_plane_and_a_moment_does() -> None:
    assert RestorePlan(PointInTime(index=9)).group_point_of(CONTROL) == PointInTime()
    assert RestorePlan(PointInTime(time_ms=9)).group_point_of(CONTROL) == PointInTime(time_ms=9)
    plan = RestorePlan(group_points={"control/0": 4})
    assert plan.group_point_of(CONTROL) == PointInTime(index=4)
