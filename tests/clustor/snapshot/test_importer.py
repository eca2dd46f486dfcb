"""The five steps of an import: what is refused, what is retried, what is quarantined."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from clustor.log.types import LogIndex
from clustor.snapshot.errors import (
    ManifestHashMismatch,
    ManifestRejected,
    ManifestSignatureInvalid,
    SnapshotDeltaRetired,
    SnapshotDeterminismViolation,
    SnapshotInvalidated,
    SnapshotMisuse,
    SnapshotSuperseded,
    SnapshotVersionUnsupported,
)
from clustor.snapshot.garbage import plan_collect_garbage
from clustor.snapshot.importer import (
    AwaitApply,
    ImportPhase,
    ImportPolicy,
    QuarantineVerdict,
    Reconciled,
    RetryChunk,
    SnapshotImport,
    SourceLost,
    StoreChunk,
    begin_chain_import,
    begin_import,
    resume_import,
    retry_delay_ms,
)
from clustor.snapshot.layout import INCOMING_MANIFEST, chunk_file
from clustor.snapshot.manifest import DedupShard, Manifest, encode_manifest, seal_manifest
from clustor.snapshot.types import InvalidationReason, SnapshotKind, hex_digest
from tests.clustor.snapshot.support import (
    KEYS,
    SIGNER,
    TRUSTED,
    Replica,
    State,
    key_ring,
    manifest_id,
    patient,
    request,
)

FULL, DELTA = SnapshotKind.FULL, SnapshotKind.DELTA
STATE: State = {"a": "1" * 40, "b": "2" * 40, "c": "3" * 40}
POLICY = ImportPolicy(TRUSTED, version_id_min=10, version_id_max=12)


class Peer:
    """A replica that offers a full snapshot and two deltas on it."""

    def __init__(self) -> None:
        self.replica = Replica()
        self.full = self.replica.emit(request(1, 500), STATE)
        self.deltas = [self.replica.emit(request(n, n * 500, DELTA), {"d": str(n)}) for n in (2, 3)]

    def sealed(self, manifest: Manifest, nth: int) -> bytes:
        return self.replica.disk.read(chunk_file(manifest.chunks[nth].chunk_id), 0, 10_000)


@pytest.fixture
def peer() -> Peer:
    return Peer()


def begin(replica: Replica, manifest: Manifest, **changes: Any) -> SnapshotImport:
    arguments: dict[str, Any] = {"catalog": replica.catalog, "keys": KEYS, "policy": POLICY}
    return begin_import(encode_manifest(manifest), **{**arguments, **changes})


def take_over(replica: Replica, peer: Peer, manifest: Manifest) -> None:
    replica.run(replica.import_plans(begin(replica, manifest), peer.replica.disk))


def resealed(manifest: Manifest, **changes: Any) -> Manifest:
    return seal_manifest(msgspec.structs.replace(manifest, **changes), SIGNER)


def streaming(peer: Peer) -> SnapshotImport:
    coming = begin(Replica(), peer.full)
    assert len(coming.take_wanted(0, limit=99)) == len(peer.full.chunks) == 3
    return coming


def test_a_full_snapshot_and_its_deltas_are_taken_over_in_order(peer: Peer) -> None:
    replica = Replica()
    for manifest in (peer.full, *peer.deltas):
        take_over(replica, peer, manifest)
    assert replica.reopened().state() == peer.replica.state() == {**STATE, "d": "3"}
    assert replica.disk.names("snapshot/incoming") == []


# Steps 1 and 2


def test_step_1_the_signature(peer: Peer) -> None:
    stranger = Ed25519PrivateKey.from_private_bytes(bytes(32))
    with pytest.raises(ManifestSignatureInvalid):
        begin(Replica(), seal_manifest(peer.full, stranger))
    with pytest.raises(ManifestHashMismatch):
        begin(Replica(), msgspec.structs.replace(peer.full, producer_version="other"))


def test_step_1_the_key_epoch(peer: Peer) -> None:
    with pytest.raises(SnapshotInvalidated) as caught:
        begin(Replica(), peer.full, keys=key_ring(4))
    assert caught.value.invalidation is InvalidationReason.DEK_EPOCH_ROLLOVER
    assert str(caught.value).startswith("snapshot_full_invalidated")


@pytest.mark.parametrize(("version", "allowed"), [(9, False), (10, True), (12, True), (13, False)])
def test_step_2_the_version_bounds(peer: Peer, version: int, allowed: bool) -> None:
    offered = resealed(peer.full, version_id=version)
    if allowed:
        assert begin(Replica(), offered).phase is ImportPhase.STREAMING
        return
    with pytest.raises(SnapshotVersionUnsupported) as caught:
        begin(Replica(), offered)
    assert caught.value.facts["bounds"] == (10, 12)


def test_another_emit_version_is_invalid(peer: Peer) -> None:
    with pytest.raises(SnapshotInvalidated) as caught:
        begin(Replica(), resealed(peer.full, emit_version=2))
    assert caught.value.invalidation is InvalidationReason.EMIT_VERSION_CHANGE


@patient
@given(st.binary(max_size=100))
def test_any_bytes_are_refused_with_a_typed_error(data: bytes) -> None:
    with pytest.raises(ManifestRejected):
        begin_import(data, catalog=Replica().catalog, keys=KEYS, policy=POLICY)


def test_a_delta_needs_exactly_its_parent(peer: Peer) -> None:
    replica = Replica()
    with pytest.raises(SnapshotInvalidated) as caught:
        begin(replica, peer.deltas[0])
    assert caught.value.invalidation is InvalidationReason.DELTA_CHAIN_VIOLATION
    take_over(replica, peer, peer.full)
    with pytest.raises(SnapshotInvalidated):
        begin(replica, peer.deltas[1])
    longer = resealed(peer.deltas[0], delta_chain_length=2)
    with pytest.raises(SnapshotInvalidated):
        begin(replica, longer)
    take_over(replica, peer, peer.deltas[0])
    rival = resealed(peer.deltas[0], manifest_id=manifest_id(77), base_index=LogIndex(2000))
    with pytest.raises(SnapshotDeltaRetired):
        begin(replica, rival)


def chain(replica: Replica, *manifests: Manifest) -> list[SnapshotImport]:
    datas = [encode_manifest(each) for each in manifests]
    return begin_chain_import(datas, catalog=replica.catalog, keys=KEYS, policy=POLICY)


def test_a_whole_chain_is_staged_by_a_replica_that_has_none_of_it(peer: Peer) -> None:
    ours = Replica()
    ours.emit(request(9, 700), {"own": "state"})  # newer than the full one, older than the chain
    imports = chain(ours, peer.full, *peer.deltas)
    assert [each.manifest for each in imports] == [peer.full, *peer.deltas]


BROKEN_CHAINS: dict[str, tuple[int, ...]] = {
    "no full one": (1, 2),
    "a link is missing": (0, 2),
    "in another order": (0, 2, 1),
    "one twice": (0, 1, 1),
}


@pytest.mark.parametrize("order", BROKEN_CHAINS.values(), ids=BROKEN_CHAINS.keys())
def test_a_chain_with_a_broken_link_is_refused(peer: Peer, order: tuple[int, ...]) -> None:
    offered = [peer.full, *peer.deltas]
    with pytest.raises(SnapshotInvalidated):
        chain(Replica(), *(offered[each] for each in order))


def test_a_delta_on_somebody_elses_full_one_is_refused(peer: Peer) -> None:
    other = Replica()
    other.emit(request(7, 500), STATE)
    stranger = other.emit(request(8, 1_000, DELTA), {"d": "other"})
    with pytest.raises(SnapshotInvalidated):
        chain(Replica(), peer.full, stranger)


@pytest.mark.parametrize("nth", range(3))
def test_every_manifest_of_a_chain_needs_a_signature_that_is_trusted(peer: Peer, nth: int) -> None:
    stranger = Ed25519PrivateKey.from_private_bytes(b"x" * 32)
    offered = [peer.full, *peer.deltas]
    offered[nth] = seal_manifest(offered[nth], stranger)
    with pytest.raises(ManifestSignatureInvalid):
        chain(Replica(), *offered)


def test_a_chain_that_ends_before_our_own_newest_is_superseded(peer: Peer) -> None:
    ours = Replica()
    ours.emit(request(9, 9_000), STATE)
    with pytest.raises(SnapshotSuperseded):
        chain(ours, peer.full, *peer.deltas)


def test_a_chain_that_is_too_long_is_refused(peer: Peer) -> None:
    replica = Replica()
    take_over(replica, peer, peer.full)
    short = ImportPolicy(TRUSTED, version_id_min=10, version_id_max=12, delta_chain_max=0)
    with pytest.raises(SnapshotInvalidated):
        begin(replica, peer.deltas[0], policy=short)


def test_what_is_older_or_known_is_superseded(peer: Peer) -> None:
    replica = Replica()
    replica.emit(request(50, 501), {})
    with pytest.raises(SnapshotSuperseded):
        begin(replica, peer.full)
    other = Replica()
    take_over(other, peer, peer.full)
    with pytest.raises(SnapshotSuperseded):
        begin(other, peer.full)


# Step 3


@pytest.mark.parametrize(
    ("attempt", "jitter", "delay"),
    [(0, 0, 1000), (1, 0, 2000), (2, 0, 4000), (3, 0, 8000), (4, 0, 10_000), (60, 0, 10_000),
     (1, 1, 2500), (1, -1, 1500), (4, 1, 12_500), (3, -0.5, 7000)],
)  # fmt: skip
def test_the_backoff_doubles_up_to_ten_seconds(attempt: int, jitter: float, delay: int) -> None:
    assert retry_delay_ms(attempt, jitter) == delay


def test_a_bad_chunk_is_asked_for_three_times_more_and_then_quarantines(peer: Peer) -> None:
    coming = streaming(peer)
    chunk_id = peer.full.chunks[1].chunk_id
    bad = bytes(len(peer.sealed(peer.full, 1)))
    now_ms, delays = 5_000, []
    for attempt in (1, 2, 3):
        outcome = coming.on_chunk(chunk_id, bad, now_ms=now_ms, jitter=0)
        assert isinstance(outcome, RetryChunk) and outcome.attempt == attempt
        assert coming.take_wanted(outcome.at_ms - 1, limit=9) == ()
        assert coming.next_deadline() == outcome.at_ms
        assert [c.chunk_id for c in coming.take_wanted(outcome.at_ms, limit=9)] == [chunk_id]
        delays.append(outcome.at_ms - now_ms)
        now_ms = outcome.at_ms
    assert delays == [2000, 4000, 8000]
    verdict = coming.on_chunk(chunk_id, bad, now_ms=now_ms, jitter=0)
    assert isinstance(verdict, QuarantineVerdict) and verdict.attempts == 3
    assert coming.phase is ImportPhase.FAILED
    assert coming.take_wanted(now_ms, limit=9) == ()
    with pytest.raises(SnapshotMisuse):
        coming.on_chunk(chunk_id, peer.sealed(peer.full, 1), now_ms=now_ms, jitter=0)


def test_retries_end_after_sixty_seconds(peer: Peer) -> None:
    coming = streaming(peer)
    chunk_id = peer.full.chunks[0].chunk_id
    assert isinstance(coming.on_chunk(chunk_id, b"", now_ms=0, jitter=0), RetryChunk)
    late = coming.on_chunk(chunk_id, b"", now_ms=56_001, jitter=0)
    assert isinstance(late, QuarantineVerdict)
    other = streaming(peer)
    assert isinstance(other.on_chunk(chunk_id, b"", now_ms=0, jitter=0), RetryChunk)
    assert isinstance(other.on_chunk(chunk_id, b"", now_ms=56_000, jitter=0), RetryChunk)


def test_a_good_chunk_ends_its_own_retries_and_nobody_elses(peer: Peer) -> None:
    coming = streaming(peer)
    first, second, third = (chunk.chunk_id for chunk in peer.full.chunks)
    for chunk_id in (first, second):
        coming.on_chunk(chunk_id, b"bad", now_ms=0, jitter=0)
    outcome = coming.on_chunk(first, peer.sealed(peer.full, 0), now_ms=9_000, jitter=0)
    assert isinstance(outcome, StoreChunk)
    coming.on_chunk_stored(first)
    again = coming.on_chunk(second, b"bad", now_ms=9_000, jitter=0)
    assert isinstance(again, RetryChunk) and again.attempt == 2
    assert isinstance(coming.on_chunk(third, b"bad", now_ms=9_000, jitter=0), RetryChunk)


def test_a_peer_that_goes_away_ends_the_import_and_quarantines_nothing(peer: Peer) -> None:
    coming = streaming(peer)
    chunk_id = peer.full.chunks[0].chunk_id
    outcomes = [coming.on_chunk_lost(chunk_id, now_ms=0, jitter=0) for _ in range(4)]
    assert [type(outcome) for outcome in outcomes] == [RetryChunk] * 3 + [SourceLost]


def test_every_flipped_byte_of_a_chunk_is_refused_and_nothing_is_written(peer: Peer) -> None:
    sealed = peer.sealed(peer.full, 0)
    for at in range(len(sealed)):
        coming = streaming(peer)
        flipped = sealed[:at] + bytes([sealed[at] ^ 4]) + sealed[at + 1 :]
        outcome = coming.on_chunk(peer.full.chunks[0].chunk_id, flipped, now_ms=0, jitter=0)
        assert isinstance(outcome, RetryChunk)


def test_a_chunk_in_another_ones_place_is_refused(peer: Peer) -> None:
    coming = streaming(peer)
    other = peer.sealed(peer.full, 1)
    outcome = coming.on_chunk(peer.full.chunks[0].chunk_id, other, now_ms=0, jitter=0)
    assert isinstance(outcome, RetryChunk)


def test_a_chunk_that_was_not_asked_for_is_our_own_mistake(peer: Peer) -> None:
    coming = streaming(peer)
    with pytest.raises(SnapshotMisuse):
        coming.on_chunk(peer.deltas[0].chunks[0].chunk_id, b"", now_ms=0, jitter=0)


def test_wanted_chunks_come_in_order_and_once(peer: Peer) -> None:
    coming = begin(Replica(), peer.full)
    assert coming.take_wanted(0, limit=2) == peer.full.chunks[:2]
    assert coming.take_wanted(0, limit=2) == peer.full.chunks[2:]
    assert coming.take_wanted(0, limit=2) == ()
    assert coming.next_deadline() is None


# Restore, authorise, reconcile


def staged(peer: Peer, manifest: Manifest) -> tuple[Replica, SnapshotImport]:
    replica = Replica()
    coming = begin(replica, manifest)
    replica.disk.execute(coming.plan)
    for nth, chunk in enumerate(coming.take_wanted(0, limit=99)):
        outcome = coming.on_chunk(chunk.chunk_id, peer.sealed(peer.full, nth), now_ms=0, jitter=0)
        assert isinstance(outcome, StoreChunk)
        replica.disk.execute(outcome.plan)
        coming.on_chunk_stored(chunk.chunk_id)
    assert coming.phase is ImportPhase.STAGED
    return replica, coming


SHARDS = (DedupShard(0, hex_digest(b"\1" * 32)), DedupShard(1, hex_digest(b"\2" * 32)))


@pytest.mark.parametrize(
    ("panes", "shards", "member"),
    [
        (b"\xee" * 32, SHARDS, "ap_pane_digest"),
        (b"\xff" * 32, SHARDS[:1], "dedup_shards"),
        (b"\xff" * 32, SHARDS[::-1], "dedup_shards"),
        (b"\xff" * 32, (), "dedup_shards"),
    ],
)
def test_a_state_with_other_digests_is_a_determinism_violation(
    peer: Peer, panes: bytes, shards: tuple[DedupShard, ...], member: str
) -> None:
    offered = resealed(peer.full, ap_pane_digest=hex_digest(b"\xff" * 32), dedup_shards=SHARDS)
    replica, coming = staged(peer, offered)
    with pytest.raises(SnapshotDeterminismViolation) as caught:
        coming.on_restored(hex_digest(panes), shards)
    assert caught.value.facts["member"] == member
    with pytest.raises(SnapshotMisuse):
        coming.plan_install(replica.catalog)
    _, good = staged(peer, offered)
    good.on_restored(hex_digest(b"\xff" * 32), SHARDS)
    assert good.phase is ImportPhase.RESTORED


def test_nothing_is_installed_before_the_state_was_compared(peer: Peer) -> None:
    replica, coming = staged(peer, peer.full)
    with pytest.raises(SnapshotMisuse):
        coming.plan_install(replica.catalog)


def test_a_local_snapshot_that_overtook_the_import_is_not_overwritten(peer: Peer) -> None:
    replica, coming = staged(peer, peer.full)
    coming.on_restored(peer.full.ap_pane_digest, ())
    replica.emit(request(60, 500), {"mine": "1"})
    replica.disk.execute(coming.plan_install(replica.catalog))
    assert coming.generation == 1
    assert replica.reopened().state() == {"mine": "1"}
    replica.emit(request(61, 501), {"mine": "2"})
    with pytest.raises(SnapshotSuperseded):
        coming.plan_install(replica.catalog)


def test_step_5_waits_for_the_base_and_for_the_trust_cache(peer: Peer) -> None:
    replica = Replica()
    coming = begin(replica, peer.full)
    before = replica.catalog
    replica.run(replica.import_plans(coming, peer.replica.disk))
    with pytest.raises(SnapshotMisuse):
        coming.reconcile(before, LogIndex(500), trust_cache_valid=True)
    after = replica.catalog
    waiting = coming.reconcile(after, LogIndex(499), trust_cache_valid=True)
    assert waiting == AwaitApply(missing_entries=1)
    with pytest.raises(SnapshotInvalidated) as caught:
        coming.reconcile(after, LogIndex(500), trust_cache_valid=False)
    assert caught.value.invalidation is InvalidationReason.INVALID_TRUST_CACHE
    done = coming.reconcile(after, LogIndex(500), trust_cache_valid=True)
    assert done == Reconciled(peer.full.base_term, LogIndex(500), LogIndex(500), LogIndex(501))


# Staging


def test_the_collector_keeps_an_import_that_can_be_resumed(peer: Peer) -> None:
    replica, coming = staged(peer, peer.full)
    assert plan_collect_garbage(replica.disk, replica.catalog) == ()
    resumed = resume_import(replica.disk, catalog=replica.catalog, keys=KEYS, policy=POLICY)
    assert resumed is not None and resumed.phase is ImportPhase.STAGED
    assert resumed.manifest == coming.manifest
    replica.emit(request(60, 501), {})  # overtaken: now it is garbage
    replica.disk.execute(plan_collect_garbage(replica.disk, replica.catalog))
    assert replica.disk.names("snapshot/incoming") == []
    assert len(replica.disk.names("snapshot/chunks")) == 1


def test_a_damaged_staged_chunk_is_asked_for_again(peer: Peer) -> None:
    replica, _ = staged(peer, peer.full)
    victim = peer.full.chunks[1]
    replica.disk.flip_bit(chunk_file(victim.chunk_id), 3, 3)
    resumed = resume_import(replica.disk, catalog=replica.catalog, keys=KEYS, policy=POLICY)
    assert resumed is not None
    assert resumed.take_wanted(0, limit=9) == (victim,)


def test_a_damaged_staged_manifest_is_refused_and_garbage(peer: Peer) -> None:
    replica, _ = staged(peer, peer.full)
    replica.disk.flip_bit(INCOMING_MANIFEST, 10, 1)
    with pytest.raises(ManifestRejected):
        resume_import(replica.disk, catalog=replica.catalog, keys=KEYS, policy=POLICY)
    replica.disk.execute(plan_collect_garbage(replica.disk, replica.catalog))
    assert replica.disk.names("snapshot/chunks") == []


def test_there_is_nothing_to_resume_on_a_fresh_disk() -> None:
    replica = Replica()
    assert resume_import(replica.disk, catalog=replica.catalog, keys=KEYS, policy=POLICY) is None
