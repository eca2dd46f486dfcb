"""What nodes say of themselves: when they say it, when it counts, and what it decides."""

from __future__ import annotations

import pytest

from clustor.control import (
    SILENT_MS,
    NodeLoad,
    NodeReport,
    NodeSpec,
    Placement,
    RefusalCode,
    RemoveNode,
    ReportNode,
    ReportSilence,
    WriterMode,
    find,
    is_stale,
    key_of,
    newly_silent,
    report_is_due,
    utilization_of,
)
from clustor.control.commands import decode_command
from tests.clustor.control.plane import Plane, node_identity, settled_plane

OLD_BYTES = (
    b'{"features":[],"io_writer_mode":"FixedUring","kind":"ReportNode","node_id":1,"version":"1.0"}'
)


def report(node_id: int, utilization: int | None = 100_000, version: str = "1.0") -> ReportNode:
    load = None
    if utilization is not None:
        load = NodeLoad(
            utilization=utilization,
            disk_bytes=1_000,
            disk_free_bytes=900,
            groups_hosted=3,
            groups_led=1,
        )
    return ReportNode(
        node_id=node_id,
        version=version,
        io_writer_mode=WriterMode.FIXED_URING,
        features=("GroupFsync",),
        load=load,
    )


def say(plane: Plane, command: ReportNode) -> None:
    plane.done(command, by=node_identity(command.node_id))


def test_the_bytes_that_older_nodes_send_are_still_a_report() -> None:
    assert decode_command(OLD_BYTES) == ReportNode(
        node_id=1, version="1.0", io_writer_mode=WriterMode.FIXED_URING, features=()
    )


def test_a_report_stands_until_its_node_is_silent_and_goes_with_its_node() -> None:
    plane = settled_plane()
    say(plane, report(4))
    held = find(plane.machine.kv, NodeReport, 4)
    assert held is not None and held.load.utilization == 100_000
    assert not is_stale(held)
    plane.now_ms += 10 * SILENT_MS  # time alone makes nobody silent: a resting node writes nothing
    plane.done(ReportSilence(node_id=4))
    held = find(plane.machine.kv, NodeReport, 4)
    assert held is not None and is_stale(held)
    say(plane, report(4))
    held = find(plane.machine.kv, NodeReport, 4)
    assert held is not None and not is_stale(held)
    plane.done(RemoveNode(node_id=4))
    assert find(plane.machine.kv, NodeReport, 4) is None


def test_nobody_reports_for_another_node() -> None:
    plane = settled_plane()
    assert plane.refused(report(2), by=node_identity(1)) is RefusalCode.UNAUTHORIZED


def test_a_report_without_news_leaves_the_node_as_it_was() -> None:
    plane = settled_plane()
    say(plane, report(1))
    before = plane.machine.kv.get(key_of(NodeSpec, 1))
    say(plane, report(1, 300_000))
    assert plane.machine.kv.get(key_of(NodeSpec, 1)) == before


DUE = {
    "just said": (report(1), False),
    "another version": (report(1, version="1.1"), True),
    "a little fuller": (report(1, 105_000), False),
    "much fuller": (report(1, 110_000), True),
    "much emptier": (report(1, 90_000), True),
    "cannot be measured": (report(1, None), False),
}


@pytest.mark.parametrize(("wanted", "due"), DUE.values(), ids=DUE.keys())
def test_when_a_report_is_due(wanted: ReportNode, due: bool) -> None:
    plane = settled_plane()
    say(plane, report(1))
    plane.now_ms += 100 * SILENT_MS
    assert report_is_due(plane.machine.kv, wanted) is due


def test_who_counts_as_silent_reports_again() -> None:
    plane = settled_plane()
    say(plane, report(1))
    plane.done(ReportSilence(node_id=1))
    assert report_is_due(plane.machine.kv, report(1))


def test_a_leader_records_whom_it_hears_no_more_and_only_once() -> None:
    plane = settled_plane()
    for node_id in (1, 2):
        say(plane, report(node_id))
    store = plane.machine.kv
    late = 1_000 + SILENT_MS + 1
    assert newly_silent(store, {1: 500, 2: 900}, 1_000, late - 1) == []  # it listens since 1,000
    assert newly_silent(store, {1: 5_000}, 1_000, late) == [ReportSilence(node_id=2)]
    plane.done(ReportSilence(node_id=2))
    assert newly_silent(store, {1: 5_000}, 1_000, late) == []


def test_the_first_report_waits_for_the_node_to_be_registered() -> None:
    plane = settled_plane()
    assert report_is_due(plane.machine.kv, report(1))
    assert not report_is_due(plane.machine.kv, report(9))


@pytest.mark.parametrize(
    ("disk", "free", "share"), [(0, 0, 0), (100, 100, 0), (100, 30, 700_000), (100, 120, 0)]
)
def test_a_share_of_a_disk(disk: int, free: int, share: int) -> None:
    assert utilization_of(disk, free) == share


# What it decides.


def test_a_node_that_says_it_is_full_gets_nothing_new() -> None:
    plane = settled_plane()
    say(plane, report(4, 700_001))
    moved = plane.placing(1, 2, 3, 4, epoch=1)
    assert plane.refused(moved) is RefusalCode.UTILIZATION_EXCEEDED
    say(plane, report(4, 700_000))
    plane.done(plane.placing(1, 2, 3, 4, epoch=1))


def test_who_carries_a_partition_already_is_not_too_full_for_it() -> None:
    plane = settled_plane()
    say(plane, report(2, 900_000))
    plane.done(plane.placing(1, 2, 3, 4, epoch=1))


def test_what_a_silent_node_said_does_not_count_and_its_silence_does() -> None:
    plane = settled_plane()
    for node_id in (2, 4):
        say(plane, report(node_id, 900_000))
        plane.done(ReportSilence(node_id=node_id))
    moved = plane.placing(1, 2, 3, 4, epoch=1)
    assert plane.refused(moved) is RefusalCode.NOT_SURVIVABLE  # one of three is heard
    say(plane, report(2, 900_000))
    plane.done(moved)
    held = find(plane.machine.kv, Placement, 1)
    assert held is not None and held.survivable
