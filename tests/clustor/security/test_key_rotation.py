"""Keys age by a plan: what is due, what is held, and what can never happen."""

from __future__ import annotations

import random

import msgspec
import pytest

from clustor.log.keys import KeyRing
from clustor.log.types import DekEpoch, PartitionId
from clustor.security import (
    DECRYPT_ONLY_MS,
    DEK_PERIOD_MS,
    KEY_RULES,
    ActivateKey,
    HoldKey,
    KeyRegistry,
    KeyState,
    KeyUse,
    RegistryUnreadable,
    RotationRefused,
    StageKey,
    ZeroizeKey,
    decode_registry,
    encode_registry,
    first_registry,
    next_rotation_ms,
    plan_rotation,
    zeroization_digest,
)
from clustor.security.key_rotation import activated, staged, zeroized, zeroizing

DEK = KeyUse.DEK


def rotated(now_ms: int = 1_000) -> KeyRegistry:
    """Return a registry whose second key has just become active."""
    registry = staged(first_registry([1], 0), StageKey(DEK, 2, now_ms), now_ms)
    return activated(registry, ActivateKey(DEK, 2), now_ms)


def test_the_registry_is_the_one_of_the_text() -> None:
    days = {use.value: (rule.period_ms or 0) // 86_400_000 for use, rule in KEY_RULES.items()}
    assert days == {
        "DataEncryptionKey": 7, "IntegrityMacKey": 0, "ReleaseAutomationKey": 180,
        "CPReleaseKey": 0, "ControlPlaneProofKey": 0, "SnapshotManifestKey": 90,
        "AuditLogKey": 365, "BreakGlassTokenCA": 38,
    }  # fmt: skip
    assert KEY_RULES[KeyUse.BREAK_GLASS_CA].overlap_ms >= 7 * 86_400_000
    assert (DEK_PERIOD_MS, DECRYPT_ONLY_MS) == (604_800_000, 172_800_000)


def test_a_data_key_is_rotated_every_week() -> None:
    registry = first_registry([1], 0)
    assert plan_rotation(registry, DEK_PERIOD_MS - 1, {}) == ()
    assert plan_rotation(registry, DEK_PERIOD_MS, {}) == (StageKey(DEK, 2),)
    assert plan_rotation(registry, 5, {}, wanted={DEK}) == (StageKey(DEK, 2),)


def test_a_staged_key_waits_for_its_moment() -> None:
    registry = staged(first_registry([1], 0), StageKey(DEK, 2), 10)
    assert plan_rotation(registry, 10**12, {}) == ()  # not every node has it
    registry = staged(registry, StageKey(DEK, 2, 500), 20)
    assert plan_rotation(registry, 499, {}) == ()
    assert plan_rotation(registry, 500, {}) == (ActivateKey(DEK, 2),)
    assert plan_rotation(registry, 499, {}, wanted={DEK}) == ()  # no second one beside it


def test_an_old_key_decrypts_for_48_hours_to_the_millisecond() -> None:
    registry = rotated(1_000)
    end = 1_000 + DECRYPT_ONLY_MS
    assert plan_rotation(registry, end - 1, {}) == ()
    assert plan_rotation(registry, end, {}) == (ZeroizeKey(DEK, 1),)
    with pytest.raises(RotationRefused, match="must decrypt for longer"):
        zeroizing(registry, ZeroizeKey(DEK, 1), end - 1)


def test_a_key_that_something_needs_is_held_however_old() -> None:
    registry = rotated()
    far = 100 * DECRYPT_ONLY_MS
    steps = plan_rotation(registry, far, {1: ("1/wal/segment",)})
    assert HoldKey(DEK, 1, ("1/wal/segment",)) in steps
    assert not any(isinstance(step, ZeroizeKey) for step in steps)
    announced = zeroizing(registry, ZeroizeKey(DEK, 1), far)
    assert HoldKey(DEK, 1, ("late",)) in plan_rotation(announced, far, {1: ("late",)})


def test_the_key_in_force_is_never_zeroized() -> None:
    with pytest.raises(RotationRefused):
        zeroizing(rotated(), ZeroizeKey(DEK, 2), 10**15)


def test_a_proof_is_a_digest_of_zeros_that_the_ring_gives() -> None:
    ring = KeyRing()
    ring.add_dek(DekEpoch(1), bytes(range(32)))
    ring.add_dek(DekEpoch(2), bytes(range(32)))
    digest = ring.zeroize_dek(DekEpoch(1))
    assert digest == zeroization_digest(1)
    announced = zeroizing(rotated(0), ZeroizeKey(DEK, 1), DECRYPT_ONLY_MS)
    done = zeroized(announced, ZeroizeKey(DEK, 1), digest, DECRYPT_ONLY_MS)
    entry = done.find(DEK, 1)
    assert entry is not None and entry.zeroization_digest == digest
    with pytest.raises(RotationRefused, match="digest"):
        zeroized(announced, ZeroizeKey(DEK, 1), "0" * 64, DECRYPT_ONLY_MS)
    with pytest.raises(RotationRefused, match="announced"):
        zeroized(rotated(0), ZeroizeKey(DEK, 1), digest, DECRYPT_ONLY_MS)


def test_a_registry_that_cannot_be_is_refused() -> None:
    good = rotated()
    assert decode_registry(encode_registry(good)) == good
    one, two = good.entries
    wrong = [
        (two, one),
        (one, one),
        (one, msgspec.structs.replace(one, epoch=3, state=KeyState.DECRYPT_ONLY), two),
        (msgspec.structs.replace(one, state=KeyState.ACTIVE), two),
        (two, msgspec.structs.replace(two, epoch=3, state=KeyState.DECRYPT_ONLY)),
    ]
    for entries in wrong:
        with pytest.raises(RegistryUnreadable):
            decode_registry(encode_registry(KeyRegistry(entries=entries)))
    for data in (b"", b"{", b"[]", encode_registry(good)[:-5]):
        with pytest.raises(RegistryUnreadable):
            decode_registry(data)
    with pytest.raises(RegistryUnreadable):
        decode_registry(encode_registry(msgspec.structs.replace(good, format_version=2)))


@pytest.mark.parametrize("seed", range(80))
def test_over_months_every_key_encrypts_before_it_decrypts_and_nothing_needed_is_lost(
    seed: int,
) -> None:
    rng = random.Random(seed)
    registry, now = first_registry([1], 0), 0
    readable_until: dict[int, int] = {}
    zeroized_epochs: set[int] = set()
    for _ in range(300):
        planned = next_rotation_ms(registry)
        now += rng.randrange(DEK_PERIOD_MS // 3)
        if planned is not None and rng.random() < 0.3:
            now = max(now, planned)
        needed = {rng.randrange(1, 9): ("file",)} if rng.random() < 0.4 else {}
        for step in plan_rotation(registry, now, needed):
            match step:
                case StageKey():
                    when = now + rng.randrange(20_000)
                    registry = staged(registry, StageKey(DEK, step.epoch, when), now)
                case ActivateKey():
                    old = registry.active(DEK)
                    registry = activated(registry, step, now)
                    assert old is not None and step.epoch == old.epoch + 1
                    readable_until[old.epoch] = now + DECRYPT_ONLY_MS
                case ZeroizeKey():
                    assert now >= readable_until[step.epoch], seed
                    assert step.epoch not in needed, seed
                    registry = zeroizing(registry, step, now)
                    if rng.random() < 0.7:  # else a crash: planned again next time
                        proof = zeroization_digest(step.epoch)
                        registry = zeroized(registry, step, proof, now)
                        zeroized_epochs.add(step.epoch)
                case HoldKey():
                    assert step.epoch in needed
        registry = decode_registry(encode_registry(registry))
        active = registry.active(DEK)
        assert active is not None and active.epoch not in zeroized_epochs
    assert len(zeroized_epochs) > 3, seed


def test_a_staged_key_opens_before_it_seals() -> None:
    ring = KeyRing()
    ring.add_dek(DekEpoch(1), bytes(32))
    ring.stage_dek(DekEpoch(2), bytes(range(32)))
    assert ring.dek_epoch == 1
    early = ring.snapshot_key(DekEpoch(2), PartitionId(1))
    ring.activate_dek(DekEpoch(2))
    assert ring.dek_epoch == 2
    assert ring.snapshot_key(DekEpoch(2), PartitionId(1)) == early
