"""A node's copy: folded from the watch, aged by the clock, resumed from its cursor."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from clustor.control import (
    AdvanceKeyEpochs,
    CacheCursor,
    CacheImage,
    ClearProofConflict,
    ClockReading,
    CompactHistory,
    ControlCache,
    DeleteTenant,
    ImageRefused,
    KeyEpochs,
    Placement,
    PublishedProof,
    RecordMembership,
    SetFollowerReads,
    TenantSpec,
    canonical,
    decode_image,
    digest_of,
    encode_image,
    find,
    scan,
)
from clustor.control.draft import scan_records
from clustor.kv import Events, Key, KvRecord, Revision, StoreId
from clustor.log.types import PartitionId
from clustor.raft.control_plane import CacheState, ControlPlaneView
from clustor.raft.profiles import ControlPlaneNumbers
from tests.clustor.control.plane import Plane, node_identity, proof, settled_plane

NUMBERS = ControlPlaneNumbers()
P1 = PartitionId(1)
STORE = StoreId(b"control")
UNIX_MS = 1_000_000  # when the monotonic clock shows 0: the plane's own start


def at(monotonic_ms: int) -> ClockReading:
    return ClockReading(monotonic_ms, UNIX_MS + monotonic_ms)


def list_all(
    cache: ControlCache, plane: Plane, now: ClockReading, *, confirmed: bool = True
) -> None:
    kv = plane.machine.kv
    cursor = CacheCursor(kv.store_id, kv.revision)
    cache.listed(cursor, scan_records(kv, b""), asked=now, confirmed=confirmed)


def poll(
    cache: ControlCache,
    plane: Plane,
    now: ClockReading,
    *,
    confirmed: bool = True,
    limit: int = 1_000,
) -> None:
    assert cache.cursor is not None
    kv = plane.machine.kv
    found = kv.events_since(cache.cursor.revision, limit=limit)
    cache.polled(found, store_id=kv.store_id, asked=now, confirmed=confirmed)


def objects(store: Plane | ControlCache) -> dict[Key, bytes]:
    kv = store.machine.kv if isinstance(store, Plane) else store
    skipped = (b"audit/", b"user/", b"slipstream/")
    return {
        record.key: record.value
        for record in scan_records(kv, b"")
        if not record.key.startswith(skipped)
    }


def fresh() -> tuple[ControlCache, Plane]:
    plane, cache = settled_plane(), ControlCache(NUMBERS)
    list_all(cache, plane, at(0))
    return cache, plane


# Folding.


def test_a_copy_that_listed_and_polled_holds_what_the_control_plane_holds() -> None:
    cache, plane = fresh()
    rng = Random(4)
    for round_number in range(30):
        name = f"t{rng.randrange(8)}"
        if find(plane.machine.kv, TenantSpec, name) is None:
            plane.add_tenant(name)
        else:
            plane.done(DeleteTenant(tenant_id=name))
        if rng.random() < 0.5:
            poll(cache, plane, at(round_number), limit=rng.randrange(1, 5))
    while cache.cursor is not None and cache.cursor.revision < plane.machine.kv.revision:
        poll(cache, plane, at(50), limit=2)
    assert objects(cache) == objects(plane)
    assert list(scan(cache, TenantSpec)) == list(scan(plane.machine.kv, TenantSpec))


def test_what_was_seen_before_is_passed_over() -> None:
    cache, plane = fresh()
    start = cache.cursor
    assert start is not None
    plane.add_tenant("b")
    events = plane.machine.kv.events_since(start.revision, limit=100)
    assert isinstance(events, Events)
    cache.polled(events, store_id=STORE, asked=at(1), confirmed=True)
    plane.done(DeleteTenant(tenant_id="b"))
    plane.done(SetFollowerReads(partition_id=1, capability=True))
    poll(cache, plane, at(2))
    cache.polled(events, store_id=STORE, asked=at(3), confirmed=True)
    assert objects(cache) == objects(plane)
    assert cache.cursor == CacheCursor(plane.machine.kv.store_id, plane.machine.kv.revision)


def test_a_compacted_history_makes_the_copy_list_again_and_it_serves_meanwhile() -> None:
    cache, plane = fresh()
    plane.add_tenant("b")
    plane.done(CompactHistory(revision=plane.machine.kv.revision))
    poll(cache, plane, at(10))
    assert cache.cursor is None
    assert find(cache, TenantSpec, "a") is not None
    assert cache.state(at(11)) is CacheState.FRESH
    list_all(cache, plane, at(12))
    assert objects(cache) == objects(plane)


def test_another_store_makes_the_copy_list_again() -> None:
    cache, _ = fresh()
    cache.polled(
        Events([], Revision(1), more=False),
        store_id=StoreId(b"stranger"),
        asked=at(1),
        confirmed=True,
    )
    assert not is_whole(cache)


def test_a_history_that_was_wound_back_makes_the_copy_list_again() -> None:
    """After a restore from a backup; proofs that go back do not: a group keeps the highest."""
    cache, plane = fresh()
    backup = settled_plane()
    backup.publish(proof(1, 10))
    plane.publish(proof(1, 10))
    plane.publish(proof(1, 20))
    plane.add_tenant("b")
    poll(cache, plane, at(1))
    poll(cache, backup, at(2), confirmed=False)
    assert is_whole(cache), "a replica that is behind says nothing"
    view = ControlPlaneView(NUMBERS)
    told(view, cache, at(3))
    poll(cache, backup, at(4))
    assert not is_whole(cache)
    list_all(cache, backup, at(5))
    assert objects(cache) == objects(backup)
    told(view, cache, at(6))
    assert view.proof == proof(1, 20).proven()
    assert not view.conflict


def is_whole(cache: ControlCache) -> bool:
    return cache.cursor is not None


def told(view: ControlPlaneView, cache: ControlCache, now: ClockReading) -> None:
    word = cache.word_for(P1, now)
    assert word is not None
    for update in word.updates:
        view.update(update, now.monotonic_ms)


# Age.


@pytest.mark.parametrize(
    ("age_ms", "state"),
    [
        (0, CacheState.FRESH),
        (60_000, CacheState.FRESH),
        (60_001, CacheState.CACHED),
        (150_000, CacheState.CACHED),
        (150_001, CacheState.STALE),
        (299_999, CacheState.STALE),
        (300_000, CacheState.EXPIRED),
    ],
)
def test_the_state_follows_from_the_age(age_ms: int, state: CacheState) -> None:
    cache, _ = fresh()
    assert cache.state(at(age_ms)) is state
    assert cache.age_ms(at(age_ms)) == age_ms


def test_what_was_never_heard_is_expired_and_says_nothing() -> None:
    cache = ControlCache(NUMBERS)
    assert cache.state(at(0)) is CacheState.EXPIRED
    assert cache.age_ms(at(0)) is None
    assert cache.word_for(P1, at(0)) is None
    assert cache.refresh_delay_ms(at(0)) == 1_000
    assert cache.cache_expiry_total == 0


def test_only_a_confirmed_answer_that_is_whole_makes_the_copy_younger() -> None:
    cache, plane = fresh()
    plane.add_tenant("b")
    plane.add_tenant("c")
    poll(cache, plane, at(70_000), confirmed=False)
    assert cache.state(at(70_000)) is CacheState.CACHED, "a cut-off replica answered"
    assert objects(cache) == objects(plane), "what it says is true all the same"
    plane.add_tenant("d")
    plane.add_tenant("e")
    poll(cache, plane, at(71_000), limit=1)
    assert cache.state(at(71_000)) is CacheState.CACHED, "there is more to come"
    poll(cache, plane, at(72_000))
    assert cache.age_ms(at(73_000)) == 1_000, "from the question, not from the answer"


def test_an_older_question_answered_late_does_not_make_the_copy_older() -> None:
    cache, plane = fresh()
    poll(cache, plane, at(5_000))
    poll(cache, plane, at(2_000))
    assert cache.age_ms(at(6_000)) == 1_000


def test_every_way_into_expired_is_counted_once() -> None:
    cache, plane = fresh()
    for now in (299_999, 300_000, 400_000):
        cache.state(at(now))
    assert cache.cache_expiry_total == 1
    poll(cache, plane, at(500_000))
    cache.state(at(500_000))
    cache.state(at(800_000))
    assert cache.cache_expiry_total == 2


# What groups hear.


def test_a_group_hears_its_proof_its_age_and_its_capability() -> None:
    cache, plane = fresh()
    plane.publish(proof(1, 10))
    plane.done(SetFollowerReads(partition_id=1, capability=True))
    poll(cache, plane, at(100))
    word = cache.word_for(P1, at(350))
    assert word is not None
    assert not word.reconciled
    (update,) = word.updates
    assert update.cache_age_ms == 250
    assert update.follower_read_snapshot_capability
    assert not update.key_epoch_replay
    assert update.proof is not None
    assert update.proof.proven == proof(1, 10).proven()
    assert update.proof.age_ms == 350


def test_a_proof_whose_signature_is_not_good_is_withheld_and_counted() -> None:
    cache, plane = fresh()
    plane.publish(proof(1, 10))
    held = find(plane.machine.kv, PublishedProof, 1)
    assert held is not None
    forged = msgspec.structs.replace(
        held, proof=msgspec.structs.replace(held.proof, last_durable_index=11)
    )
    record = KvRecord(forged.key(), canonical(forged), Revision(99), Revision(99), 1, 0)
    events = Events([record], Revision(99), more=False)
    cache.polled(events, store_id=STORE, asked=at(1), confirmed=True)
    for _ in range(3):
        word = cache.word_for(P1, at(2))
        assert word is not None
        assert [update.proof for update in word.updates] == [None]
    assert cache.bad_proofs == 1, "verified once for each revision"


def test_a_conflict_is_shown_as_two_proofs_and_its_clearing_told_once() -> None:
    cache, plane = fresh()
    plane.publish(proof(1, 10))
    plane.publish(proof(1, 10, segment=2))
    poll(cache, plane, at(1))
    word = cache.word_for(P1, at(2))
    assert word is not None
    segments = [update.proof and update.proof.proven.segment_seq for update in word.updates]
    assert segments == [1, 2]
    plane.done(ClearProofConflict(partition_id=1, justification="looked"))
    poll(cache, plane, at(3))
    first, second = cache.word_for(P1, at(4)), cache.word_for(P1, at(5))
    assert first is not None
    assert second is not None
    assert (first.reconciled, second.reconciled) == (True, False)
    assert [update.proof for update in first.updates] == [None]


def test_a_key_epoch_that_goes_back_is_a_replay_until_it_has_come_back() -> None:
    cache, plane = fresh()
    plane.done(AdvanceKeyEpochs(kek_version=1, dek_epoch=5, integrity_mac_epoch=1))
    poll(cache, plane, at(1))
    assert not cache.key_epoch_replay
    held = find(plane.machine.kv, KeyEpochs, "newest")
    assert held is not None
    restored_from_backup = settled_plane()
    restored_from_backup.done(AdvanceKeyEpochs(kek_version=2, dek_epoch=4, integrity_mac_epoch=1))
    list_all(cache, restored_from_backup, at(2))
    word = cache.word_for(P1, at(3))
    assert word is not None
    assert word.updates[0].key_epoch_replay
    restored_from_backup.done(AdvanceKeyEpochs(kek_version=2, dek_epoch=5, integrity_mac_epoch=1))
    poll(cache, restored_from_backup, at(4))
    assert not cache.key_epoch_replay


def test_a_recorded_membership_is_acknowledged() -> None:
    cache, plane = fresh()
    word = cache.word_for(P1, at(0))
    assert word is not None
    assert word.membership_ack is None
    placed = find(plane.machine.kv, Placement, 1)
    assert placed is not None
    command = RecordMembership(
        partition_id=1,
        node_id=1,
        routing_epoch=1,
        membership_digest=digest_of(placed.members),
        durability_mode_epoch=0,
    )
    plane.done(command, by=node_identity(1))
    poll(cache, plane, at(1))
    word = cache.word_for(P1, at(1))
    assert word is not None
    assert word.membership_ack is not None
    assert word.membership_ack.membership_digest == digest_of(placed.members)


# Restarts.


def test_a_restart_goes_on_from_the_cursor_with_the_age_that_it_had() -> None:
    cache, plane = fresh()
    plane.publish(proof(1, 10))
    poll(cache, plane, at(1_000))
    encoded = encode_image(cache.image())
    plane.add_tenant("b")
    woken = ClockReading(7, UNIX_MS + 70_000)  # another monotonic clock
    again = ControlCache.from_image(NUMBERS, decode_image(encoded), woken)
    assert again.cursor == cache.cursor
    assert again.age_ms(woken) == 69_000
    assert again.state(woken) is CacheState.CACHED
    poll(again, plane, ClockReading(8, UNIX_MS + 70_001))
    assert objects(again) == objects(plane)
    assert again.state(ClockReading(9, UNIX_MS + 70_002)) is CacheState.FRESH


def test_a_clock_that_went_back_makes_the_age_unknown() -> None:
    cache, _ = fresh()
    early = ClockReading(5, UNIX_MS - 1)
    again = ControlCache.from_image(NUMBERS, cache.image(), early)
    assert again.state(early) is CacheState.EXPIRED


def test_key_epochs_are_remembered_beyond_a_restart() -> None:
    cache, plane = fresh()
    plane.done(AdvanceKeyEpochs(kek_version=1, dek_epoch=5, integrity_mac_epoch=1))
    poll(cache, plane, at(1))
    again = ControlCache.from_image(NUMBERS, decode_image(encode_image(cache.image())), at(2))
    list_all(again, settled_plane(), at(3))
    assert again.key_epoch_replay
    once_more = ControlCache.from_image(NUMBERS, decode_image(encode_image(again.image())), at(4))
    assert once_more.key_epoch_replay, "no record of it is left, and it is known all the same"


def test_every_damaged_image_is_refused() -> None:
    cache, _ = fresh()
    encoded = encode_image(cache.image())
    rng = Random(1)
    for _ in range(200):
        place = rng.randrange(len(encoded))
        damaged = bytearray(encoded)
        damaged[place] ^= 1 << rng.randrange(8)
        with pytest.raises(ImageRefused):
            decode_image(bytes(damaged))
    for length in (0, 5, 16, len(encoded) - 1):
        with pytest.raises(ImageRefused):
            decode_image(encoded[:length])
    later = CacheImage(
        version=2,
        store_id=StoreId(b"x"),
        revision=Revision(1),
        confirmed_unix_ms=None,
        highest_epochs=(0, 0, 0),
        records=[],
    )
    with pytest.raises(ImageRefused, match="unknown version"):
        decode_image(encode_image(later))
