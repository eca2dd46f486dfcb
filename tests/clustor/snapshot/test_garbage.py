"""Collecting garbage: what goes, and above all what stays."""

from __future__ import annotations

import pytest

from clustor.log.steps import Create, DeleteFile, FileName
from clustor.snapshot.catalog import open_catalog, plan_acknowledge, plan_authorize, relist
from clustor.snapshot.errors import CorruptSnapshot, SnapshotMisuse
from clustor.snapshot.garbage import plan_collect_garbage, plan_forget
from clustor.snapshot.types import SnapshotKind
from tests.clustor.snapshot.support import (
    PARTITION,
    Replica,
    State,
    all_files,
    request,
)

FULL, DELTA = SnapshotKind.FULL, SnapshotKind.DELTA
SMALL: State = {"alpha": "1", "beta": "2" * 70}


def story(replica: Replica, kinds: str) -> None:
    for number, kind in enumerate(kinds, start=1):
        replica.emit(
            request(number, number * 100, FULL if kind == "F" else DELTA), {"n": kind * number}
        )


@pytest.mark.parametrize(
    ("kinds", "kept"),
    [
        ("F", "1"),
        ("FF", "12"),
        ("FFF", "23"),
        ("FDDFD", "12345"),
        ("FDFDFD", "3456"),
        ("FDDFDF", "456"),
    ],
)
def test_two_full_snapshots_are_kept_with_their_deltas(kinds: str, kept: str) -> None:
    replica = Replica()
    story(replica, kinds)
    expected = replica.state()
    replica.disk.execute(plan_collect_garbage(replica.disk, replica.catalog))
    reopened = replica.reopened()
    assert "".join(str(s.record.auth_seq) for s in reopened.catalog.snapshots) == kept
    assert reopened.state() == expected
    assert plan_collect_garbage(reopened.disk, reopened.catalog) == ()
    reopened.adopt(plan_forget(reopened.catalog))
    assert Replica(reopened.disk).catalog.snapshots == reopened.catalog.snapshots
    assert len(reopened.catalog.log.entries) == 2 * len(kept)


def test_nothing_older_goes_before_the_acknowledgement() -> None:
    replica = Replica()
    story(replica, "FD")
    manifest = replica.write(request(3, 300), {"new": "1"})
    replica.adopt(
        plan_authorize(replica.catalog, relist(replica.disk, manifest, 0), since_full_ms=0)
    )
    assert plan_collect_garbage(replica.disk, replica.catalog, fulls_retained=1) == ()
    replica.adopt(plan_acknowledge(replica.catalog))
    replica.disk.execute(plan_collect_garbage(replica.disk, replica.catalog, fulls_retained=1))
    assert replica.reopened().state() == {"new": "1"}
    assert len(replica.reopened().catalog.snapshots) == 1


def test_leftovers_go_and_an_emission_under_way_stays() -> None:
    replica = Replica()
    story(replica, "F")
    before = all_files(replica)
    replica.write(request(2, 200), SMALL)  # given up before its authorisation
    tmp = FileName("snapshot/1-200/manifest.json.tmp")
    replica.disk.execute((Create(tmp),))
    emission = replica.begin(request(3, 300), SMALL)
    for plan in emission:
        replica.disk.execute(plan)
        protected = plan_collect_garbage(replica.disk, replica.catalog, protect=emission.files())
        replica.disk.execute(protected)
    replica.disk.execute(emission.plan_manifest(replica.catalog))
    replica.disk.execute(
        plan_collect_garbage(replica.disk, replica.catalog, protect=emission.files())
    )
    assert emission.manifest is not None
    relist(replica.disk, emission.manifest, emission.generation)
    replica.disk.execute(plan_collect_garbage(replica.disk, replica.catalog))
    assert all_files(replica) == before


def test_a_plan_is_bounded_and_the_rest_follows() -> None:
    replica = Replica()
    story(replica, "FFF")
    rounds = 0
    while plan := plan_collect_garbage(
        replica.disk, replica.catalog, fulls_retained=1, files_max=1
    ):
        assert sum(isinstance(step, DeleteFile) for step in plan) == 1
        replica.disk.execute(plan)
        Replica(replica.disk.copy())  # each step leaves a catalog that opens
        rounds += 1
    assert rounds >= 4
    assert len(replica.reopened().catalog.snapshots) == 1


def test_a_damaged_old_manifest_stops_the_collector() -> None:
    replica = Replica()
    story(replica, "FFF")
    replica.disk.flip_bit(FileName("snapshot/1-100/manifest.json"), 5, 1)
    reopened = replica.reopened()
    assert reopened.catalog.damaged == (FileName("snapshot/1-100/manifest.json"),)
    assert reopened.state() == {"n": "FFF"}
    with pytest.raises(CorruptSnapshot):
        plan_collect_garbage(reopened.disk, reopened.catalog)


def test_the_collector_refuses_a_catalog_that_is_not_settled() -> None:
    replica = Replica()
    story(replica, "F")
    with pytest.raises(SnapshotMisuse):
        plan_collect_garbage(replica.disk, open_catalog(replica.disk, PARTITION))
