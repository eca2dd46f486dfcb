"""Power cuts and kills between any two steps: a restart finds the old snapshot or the new one."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from clustor.log.steps import FileName, Plan
from clustor.sim.disk import CrashChoice, SimDisk
from clustor.snapshot.garbage import plan_collect_garbage, plan_forget
from clustor.snapshot.importer import ImportPolicy, begin_import, resume_import
from clustor.snapshot.layout import AUTHORIZATION_LOG
from clustor.snapshot.manifest import decode_manifest, encode_manifest
from clustor.snapshot.types import SnapshotKind
from tests.clustor.snapshot.support import TRUSTED, Replica, State, request

FULL, DELTA = SnapshotKind.FULL, SnapshotKind.DELTA
OLD: State = {"a": "old", "b": "x" * 80}
CHANGE: State = {"a": "new", "c": "y" * 150}
NEW: State = {**OLD, **CHANGE}
NOTHING_KEPT = CrashChoice()
POLICY = ImportPolicy(TRUSTED, version_id_min=12, version_id_max=12)

reordering = pytest.mark.parametrize("reorder", [False, True], ids=["ordered", "reordered"])


def with_old(*, reorder: bool) -> Replica:
    replica = Replica(SimDisk(reorder_directory_ops=reorder))
    replica.emit(request(1, 100), OLD)
    return replica


def outcomes(disk: SimDisk, rng: Random) -> Iterator[SimDisk]:
    """What a power cut may leave, and what a kill leaves: everything, durable or not."""
    yield disk.copy()
    yield from disk.crashes(rng, max_exhaustive=48, samples=8)


def every_crash(replica: Replica, plans: Iterator[Plan], rng: Random) -> Iterator[SimDisk]:
    """Run the plans; yield each disk that a crash before or after any step may leave."""
    for plan in plans:
        for point in replica.disk.crash_points(plan):
            yield from outcomes(point, rng)


def restarted(disk: SimDisk) -> Replica:
    """Start on what is there. What a start has seen, no later power cut may take back."""
    replica = Replica(disk)
    seen = replica.state()
    replica.run(iter([plan_collect_garbage(disk, replica.catalog)]))
    assert Replica(disk.copy()).state() == seen
    assert Replica(disk.crash(NOTHING_KEPT)).state() == seen
    return replica


@reordering
@pytest.mark.parametrize("kind", [FULL, DELTA])
def test_an_emission_leaves_the_old_snapshot_or_the_new_one(
    kind: SnapshotKind, reorder: bool
) -> None:
    replica = with_old(reorder=reorder)
    content = NEW if kind is FULL else CHANGE
    seen: list[State] = []
    for disk in every_crash(
        replica, replica.emission_plans(request(2, 200, kind), content), Random(1)
    ):
        after = restarted(disk)
        seen.append(after.state())
        assert seen[-1] in (OLD, NEW)
        after.emit(request(3, 300), {"third": "1"})  # and life goes on
        assert after.reopened().state() == {"third": "1"}
    assert OLD in seen and NEW in seen
    assert replica.reopened().state() == NEW


@reordering
def test_before_the_authorisation_it_is_the_old_one_and_after_it_the_new_one(reorder: bool) -> None:
    replica = with_old(reorder=reorder)
    rng = Random(2)
    for disk in every_crash(replica, replica.write_plans(request(2, 200), NEW), rng):
        assert restarted(disk).state() == OLD
    plans = replica.authorize_plans()
    replica.disk.execute(next(plans))
    for disk in outcomes(replica.disk, rng):
        assert restarted(disk).state() == NEW
    for disk in every_crash(replica, plans, rng):
        after = restarted(disk)
        assert after.state() == NEW


@reordering
def test_the_very_first_snapshot_is_whole_or_absent(reorder: bool) -> None:
    replica = Replica(SimDisk(reorder_directory_ops=reorder))
    for disk in every_crash(replica, replica.emission_plans(request(1, 100), NEW), Random(3)):
        after = restarted(disk)
        if after.catalog.newest is None:
            after.emit(request(2, 100), NEW)
        assert after.reopened().state() == NEW


def manifests_have_their_chunks(disk: SimDisk) -> bool:
    """Say whether every manifest that is there, needed or not, could still be restored."""
    chunks = set(disk.names("snapshot/chunks"))
    for directory in disk.names("snapshot"):
        if "-" in directory and "manifest.json" in disk.names(f"snapshot/{directory}"):
            file = FileName(f"snapshot/{directory}/manifest.json")
            manifest = decode_manifest(disk.read(file, 0, 10_000))
            if not chunks.issuperset(chunk.chunk_id for chunk in manifest.chunks):
                return False
    return True


@reordering
def test_collecting_garbage_keeps_what_is_needed_at_every_step(reorder: bool) -> None:
    replica = with_old(reorder=reorder)
    for number, kind in enumerate((DELTA, DELTA, FULL, DELTA, FULL, DELTA), start=2):
        replica.emit(request(number, number * 100, kind), NEW if kind is FULL else CHANGE)
    replica.write(request(90, 9000), {"given": "up"})

    def plans() -> Iterator[Plan]:
        while plan := plan_collect_garbage(
            replica.disk, replica.catalog, fulls_retained=1, files_max=5
        ):
            yield plan
        yield plan_forget(replica.catalog, fulls_retained=1).plan

    for disk in every_crash(replica, plans(), Random(4)):
        assert manifests_have_their_chunks(disk)
        after = restarted(disk)
        assert after.state() == NEW
        assert len(after.catalog.snapshots) >= 2
    assert [s.record.auth_seq for s in replica.reopened().catalog.snapshots] == [6, 7]


@pytest.mark.parametrize("evict", [False, True])
@pytest.mark.parametrize("nth", [0, 1], ids=["authorisation", "acknowledgement"])
def test_a_failed_sync_of_the_authorisation_log_is_not_believed_later(
    nth: int, evict: bool
) -> None:
    """The kernel may call the lost pages clean: a later sync succeeds and writes nothing."""
    replica = with_old(reorder=False)
    replica.write(request(2, 200), NEW)
    plans = replica.authorize_plans()
    for _ in range(nth):
        replica.disk.execute(next(plans))
    replica.disk.fail_next_sync(AUTHORIZATION_LOG, evict=evict)
    with pytest.raises(OSError, match="Input/output error"):
        replica.disk.execute(next(plans))
    after = restarted(replica.disk)
    assert after.state() in (OLD, NEW)
    after.emit(request(3, 300), {"third": "1"})
    assert Replica(after.disk.crash(NOTHING_KEPT)).state() == {"third": "1"}


def source() -> tuple[Replica, list[bytes]]:
    """A peer with a full snapshot and a delta on it."""
    peer = Replica()
    full = peer.emit(request(11, 500), OLD)
    delta = peer.emit(request(12, 600, DELTA), CHANGE)
    return peer, [encode_manifest(full), encode_manifest(delta)]


def import_or_resume(replica: Replica, offer: bytes, peer: Replica) -> None:
    """Do what a restarted replica does: go on, or begin, unless it has the snapshot already."""
    coming = resume_import(replica.disk, catalog=replica.catalog, keys=replica.keys, policy=POLICY)
    if coming is None:
        coming = begin_import(offer, catalog=replica.catalog, keys=replica.keys, policy=POLICY)
    replica.run(replica.import_plans(coming, peer.disk))


@reordering
@pytest.mark.parametrize("have", ["nothing", "an older one of its own"])
def test_an_import_can_be_resumed_after_any_step(have: str, reorder: bool) -> None:
    peer, (offer, _) = source()
    replica = Replica(SimDisk(reorder_directory_ops=reorder))
    if have != "nothing":
        replica.emit(request(1, 100), {"mine": "1"})
    before = replica.state()
    coming = begin_import(offer, catalog=replica.catalog, keys=replica.keys, policy=POLICY)
    for disk in every_crash(replica, replica.import_plans(coming, peer.disk), Random(5)):
        after = restarted(disk)
        if after.state() == before:
            import_or_resume(after, offer, peer)
        assert after.reopened().state() == OLD
        assert Replica(after.disk.crash(NOTHING_KEPT)).state() == OLD
    assert replica.reopened().state() == OLD


@reordering
def test_a_delta_import_can_be_resumed_after_any_step(reorder: bool) -> None:
    peer, (full, delta) = source()
    replica = Replica(SimDisk(reorder_directory_ops=reorder))
    import_or_resume(replica, full, peer)
    coming = begin_import(delta, catalog=replica.catalog, keys=replica.keys, policy=POLICY)
    for disk in every_crash(replica, replica.import_plans(coming, peer.disk), Random(6)):
        after = restarted(disk)
        assert after.state() in (OLD, NEW)
        if after.state() == OLD:
            import_or_resume(after, delta, peer)
        assert after.reopened().state() == NEW


def test_a_resumed_import_asks_only_for_what_is_missing() -> None:
    peer, (offer, _) = source()
    replica = Replica()
    coming = begin_import(offer, catalog=replica.catalog, keys=replica.keys, policy=POLICY)
    plans = replica.import_plans(coming, peer.disk)
    for plan in (next(plans), next(plans)):  # the manifest and the first chunk
        replica.disk.execute(plan)
    again = Replica(replica.disk)
    resumed = resume_import(again.disk, catalog=again.catalog, keys=again.keys, policy=POLICY)
    assert resumed is not None
    wanted = [chunk.chunk_id for chunk in resumed.take_wanted(0, limit=1000)]
    assert wanted == [chunk.chunk_id for chunk in coming.manifest.chunks[1:]]
