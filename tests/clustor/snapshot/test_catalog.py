"""Emission, authorisation and restore on a disk that does not crash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustor.log.steps import DeleteFile, FileName, WriteFile
from clustor.log.types import LogIndex, PartitionId, Term
from clustor.snapshot.catalog import (
    open_catalog,
    plan_acknowledge,
    plan_authorize,
    read_content,
    relist,
)
from clustor.snapshot.emission import plan_snapshot
from clustor.snapshot.errors import (
    CorruptSnapshot,
    SnapshotDeltaRetired,
    SnapshotFailure,
    SnapshotFileMissing,
    SnapshotInvalidated,
    SnapshotMisuse,
    SnapshotSuperseded,
)
from clustor.snapshot.layout import AUTHORIZATION_LOG, chunk_file
from clustor.snapshot.types import InvalidationReason, SnapshotKind
from tests.clustor.snapshot.support import (
    KEYS,
    PARTITION,
    SIGNER,
    Replica,
    State,
    all_files,
    key_ring,
    lines,
    patient,
    rebuilt,
    request,
    salt,
)

FULL, DELTA = SnapshotKind.FULL, SnapshotKind.DELTA
SMALL: State = {"alpha": "1", "beta": "2" * 70}


def test_the_files_stand_where_the_layout_says() -> None:
    replica = Replica()
    manifest = replica.emit(request(1, 100, term=4), SMALL)
    chunks = [f"snapshot/chunks/{chunk.chunk_id}" for chunk in manifest.chunks]
    others = ["snapshot/4-100/manifest.json", "snapshot/authorization.log"]
    assert all_files(replica) == sorted(chunks + others)
    assert len(chunks) == 2


def test_an_empty_state_is_one_empty_chunk_that_is_bound_to_its_partition() -> None:
    replica = Replica()
    manifest = replica.emit(request(1, 100), {})
    assert [chunk.len for chunk in manifest.chunks] == [0]
    assert replica.reopened().state() == {}
    with pytest.raises(SnapshotFailure):
        list(read_content(replica.disk, manifest, KEYS, PartitionId(8)))


states = st.dictionaries(st.text(max_size=5), st.text(max_size=60), max_size=12)


@patient
@given(states, st.lists(states, max_size=4), st.integers(1, 300))
def test_a_full_snapshot_and_its_deltas_restore_the_state(
    first: State, changes: list[State], chunk_bytes: int
) -> None:
    replica = Replica()
    replica.emit(request(1, 100, chunk_bytes=chunk_bytes), first)
    state = dict(first)
    for number, change in enumerate(changes, start=2):
        state.update(change)
        replica.emit(request(number, number * 100, DELTA, chunk_bytes=chunk_bytes), change)
    reopened = replica.reopened()
    assert reopened.state() == state
    assert reopened.catalog.snapshots == replica.catalog.snapshots
    assert all(snapshot.acknowledged for snapshot in reopened.catalog.snapshots)


@patient
@given(st.lists(st.binary(max_size=200), max_size=20), st.integers(1, 100))
def test_however_the_content_is_cut_it_comes_back(pieces: list[bytes], chunk_bytes: int) -> None:
    replica = Replica()
    wanted = request(1, 100, chunk_bytes=chunk_bytes)
    emission = plan_snapshot(replica.catalog, wanted, iter(pieces), keys=KEYS, signer=SIGNER)
    for plan in emission:
        written = [step.data for step in plan if isinstance(step, WriteFile)]
        assert sum(map(len, written)) <= chunk_bytes + 16  # one chunk is all that is held
        replica.disk.execute(plan)
    replica.disk.execute(emission.plan_manifest(replica.catalog))
    assert emission.manifest is not None
    content = b"".join(read_content(replica.disk, emission.manifest, KEYS, PARTITION))
    assert content == b"".join(pieces)
    assert emission.manifest.content_bytes == len(content)


def test_the_content_is_pulled_one_chunk_at_a_time() -> None:
    pulled: list[int] = []

    def content() -> Iterator[bytes]:
        for number in range(10):
            pulled.append(number)
            yield bytes(64)

    emission = plan_snapshot(
        Replica().catalog,
        request(1, 100),
        content(),
        keys=KEYS,
        signer=SIGNER,
    )
    next(emission)
    assert pulled == [0]
    with pytest.raises(SnapshotMisuse):
        emission.plan_manifest(Replica().catalog)


def test_a_chain_is_one_longer_each_time_and_a_full_one_ends_it() -> None:
    replica = Replica()
    story = [FULL, DELTA, DELTA, FULL, DELTA]
    made = [replica.emit(request(n, n * 100, kind), SMALL) for n, kind in enumerate(story, 1)]
    assert [manifest.delta_chain_length for manifest in made] == [0, 1, 2, 0, 1]
    newest = replica.catalog.newest
    assert newest is not None
    chain = replica.catalog.chain(newest)
    assert [snapshot.manifest for snapshot in chain] == made[3:]


def test_a_chain_longer_than_allowed_is_refused() -> None:
    replica = Replica()
    replica.emit(request(1, 100), SMALL)
    replica.emit(request(2, 200, DELTA), SMALL)
    with pytest.raises(SnapshotInvalidated) as caught:
        plan_snapshot(
            replica.catalog, request(3, 300, DELTA), lines(SMALL), keys=KEYS, signer=SIGNER,
            delta_chain_max=1,
        )  # fmt: skip
    assert caught.value.invalidation is InvalidationReason.DELTA_CHAIN_VIOLATION
    assert str(caught.value).startswith("snapshot_delta_invalidated")


def test_a_delta_needs_a_parent_of_its_own_key_epoch() -> None:
    replica = Replica()
    with pytest.raises(SnapshotInvalidated):
        replica.begin(request(1, 100, DELTA), SMALL)
    replica.emit(request(1, 100), SMALL)
    replica.keys = key_ring(3, 4)
    with pytest.raises(SnapshotInvalidated) as caught:
        replica.begin(request(2, 200, DELTA), SMALL)
    assert caught.value.invalidation is InvalidationReason.DEK_EPOCH_ROLLOVER


def test_a_delta_must_cover_more_and_nothing_may_go_back() -> None:
    replica = Replica()
    replica.emit(request(1, 100, term=2), SMALL)
    with pytest.raises(SnapshotInvalidated):
        replica.begin(request(2, 100, DELTA, term=2), SMALL)
    for older in (request(2, 99, term=2), request(2, 200, term=1), request(2, 99, term=3)):
        with pytest.raises(SnapshotSuperseded):
            replica.begin(older, SMALL)


def test_a_salt_or_an_id_is_not_used_twice() -> None:
    replica = Replica()
    replica.emit(request(1, 100), SMALL)
    again = request(1, 200)
    with pytest.raises(SnapshotMisuse, match="salt"):
        replica.begin(again, SMALL)


@pytest.mark.parametrize(
    "wrong",
    [
        {"manifest_id": "not an id"},
        {"manifest_id": "00000000-0000-0000-0000-000000000001"},
        {"producer_version": ""},
        {"version_id": 2**53},
        {"base_index": -1},
        {"ap_pane_digest": "0x00"},
        {"iv_salt": b"short"},
        {"chunk_bytes": 0},
        {"chunk_bytes": 2**30},
    ],
    ids=str,
)
def test_a_request_that_cannot_be_meant_is_refused_before_the_first_chunk(
    wrong: dict[str, Any],
) -> None:
    with pytest.raises(SnapshotMisuse):
        Replica().begin(replace(request(1, 100), **wrong), SMALL)


def test_a_new_key_epoch_re_emits_at_the_same_index_beside_the_old_one() -> None:
    replica = Replica()
    old = replica.emit(request(1, 100), SMALL)
    replica.keys = key_ring(3, 4)
    new = replica.emit(request(2, 100), SMALL)
    assert "snapshot/1-100.1/manifest.json" in all_files(replica)
    assert (old.encryption.dek_epoch, new.encryption.dek_epoch) == (3, 4)
    replica.keys = key_ring(4)
    assert replica.reopened().state() == SMALL


def test_a_snapshot_whose_key_is_gone_says_so() -> None:
    replica = Replica()
    replica.emit(request(1, 100), SMALL)
    with pytest.raises(SnapshotInvalidated) as caught:
        rebuilt(replica.disk, replica.catalog, key_ring(4))
    assert caught.value.invalidation is InvalidationReason.DEK_EPOCH_ROLLOVER


def test_a_wrong_key_opens_nothing() -> None:
    replica = Replica()
    replica.emit(request(1, 100), SMALL)
    wrong = key_ring()
    wrong._deks.roots[3][:] = bytes(32)  # the right epoch with another root
    with pytest.raises(CorruptSnapshot):
        rebuilt(replica.disk, replica.catalog, wrong)


def test_what_overtakes_an_emission_is_neither_overwritten_nor_extended() -> None:
    replica = Replica()
    replica.emit(request(1, 100), SMALL)
    slow_delta = replica.begin(request(2, 200, DELTA), SMALL)
    slow_full = replica.begin(request(3, 200), SMALL)
    replica.emit(request(4, 200), {"newer": "yes"})
    for plan in (*slow_delta, *slow_full):
        replica.disk.execute(plan)
    with pytest.raises(SnapshotDeltaRetired):
        slow_delta.plan_manifest(replica.catalog)
    replica.disk.execute(slow_full.plan_manifest(replica.catalog))
    assert slow_full.generation == 1
    assert replica.reopened().state() == {"newer": "yes"}


def test_authorisation_waits_for_files_that_read_back() -> None:
    replica = Replica()
    manifest = replica.write(request(1, 100), SMALL)
    for file in (chunk_file(manifest.chunks[1].chunk_id), FileName("snapshot/1-100/manifest.json")):
        disk = replica.disk.copy()
        disk.flip_bit(file, disk.size(file) - 1, 0)
        with pytest.raises(CorruptSnapshot):
            relist(disk, manifest, 0)
        disk.execute((DeleteFile(file),))
        with pytest.raises(SnapshotFileMissing):
            relist(disk, manifest, 0)
    assert open_catalog(replica.disk, PARTITION).newest is None
    relist(replica.disk, manifest, 0)


def test_an_authorisation_needs_its_place_and_an_acknowledgement_a_snapshot() -> None:
    replica = Replica()
    with pytest.raises(SnapshotMisuse):
        plan_acknowledge(replica.catalog)
    manifest = replica.write(request(1, 100), SMALL)
    proof = relist(replica.disk, manifest, 0)
    replica.adopt(plan_authorize(replica.catalog, proof, since_full_ms=5))
    assert replica.catalog.newest_acknowledged is None
    with pytest.raises(SnapshotSuperseded):
        plan_authorize(replica.catalog, proof, since_full_ms=5)
    replica.adopt(plan_acknowledge(replica.catalog))
    assert plan_acknowledge(replica.catalog).plan == ()
    record = replica.catalog.snapshots[0].record
    assert (record.auth_seq, record.since_full_ms, record.base_term) == (1, 5, Term(1))


def test_every_flipped_byte_of_every_file_is_seen_and_never_restored() -> None:
    """Only the last CompactionAuthAck is not missed: it is written again."""
    replica = Replica()
    replica.emit(request(1, 100), SMALL)
    replica.emit(request(2, 200, DELTA), {"alpha": "3"})
    tail = replica.disk.size(AUTHORIZATION_LOG) - 168
    for file in all_files(replica):
        for at in range(replica.disk.size(file)):
            disk = replica.disk.copy()
            disk.flip_bit(file, at, (at * 5) % 8)
            if file == AUTHORIZATION_LOG and at >= tail:
                catalog = open_catalog(disk, PARTITION)
                assert rebuilt(disk, catalog) == {**SMALL, "alpha": "3"}
                assert catalog.newest is not None and not catalog.newest.acknowledged
                continue
            with pytest.raises(CorruptSnapshot):
                rebuilt(disk, open_catalog(disk, PARTITION))


def test_every_missing_file_is_seen() -> None:
    replica = Replica()
    replica.emit(request(1, 100), SMALL)
    replica.emit(request(2, 200, DELTA), {"alpha": "3"})
    for file in all_files(replica):
        if file != AUTHORIZATION_LOG:
            disk = replica.disk.copy()
            disk.execute((DeleteFile(file),))
            with pytest.raises(SnapshotFileMissing):
                open_catalog(disk, PARTITION)


def test_salts_differ_and_so_do_the_files_of_equal_states() -> None:
    replica = Replica()
    made = [replica.emit(request(n, 100 * n), SMALL) for n in (1, 2)]
    assert salt(1) != salt(2)
    for one, other in pairwise(made):
        assert {c.digest for c in one.chunks}.isdisjoint(c.digest for c in other.chunks)
    assert replica.catalog.free_generation(Term(1), LogIndex(100)) == 1
