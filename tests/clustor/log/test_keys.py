"""Key epochs: one key per log, no epoch twice, nothing left after zeroizing."""

from __future__ import annotations

import hashlib

import pytest

from clustor.log.errors import KeyEpochReplay, KeyUnavailable, LogMisuse
from clustor.log.keys import KeyRing
from clustor.log.types import DekEpoch, LogId, MacEpoch, PartitionId

ONE = LogId(b"1" * 16)
TWO = LogId(b"2" * 16)


def ring() -> KeyRing:
    keys = KeyRing()
    keys.add_dek(DekEpoch(1), bytes(range(32)))
    keys.add_mac(MacEpoch(1), bytes(range(32, 64)))
    return keys


def test_no_two_logs_and_no_two_purposes_share_a_key() -> None:
    keys = ring()
    keys.add_dek(DekEpoch(2), bytes(32))
    derived = [
        keys.log_key(DekEpoch(1), PartitionId(7), ONE),
        keys.log_key(DekEpoch(1), PartitionId(7), TWO),
        keys.log_key(DekEpoch(1), PartitionId(8), ONE),
        keys.log_key(DekEpoch(2), PartitionId(7), ONE),
        keys.snapshot_key(DekEpoch(1), PartitionId(7)),
        keys.mac_key(MacEpoch(1), PartitionId(7), ONE),
    ]
    assert len(set(derived)) == len(derived)
    assert all(len(key) == 32 for key in derived)


def test_a_rotated_epoch_still_decrypts_and_the_new_one_encrypts() -> None:
    keys = ring()
    before = keys.log_key(DekEpoch(1), PartitionId(7), ONE)
    keys.add_dek(DekEpoch(2), bytes(32))
    assert keys.dek_epoch == 2
    assert keys.dek_epochs() == (1, 2)
    assert keys.log_key(DekEpoch(1), PartitionId(7), ONE) == before


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_epoch_never_comes_again(epoch: int) -> None:
    with pytest.raises(KeyEpochReplay):
        ring().add_dek(DekEpoch(epoch), bytes(32))


def test_a_zeroized_epoch_is_gone_and_its_digest_can_be_recomputed() -> None:
    keys = ring()
    keys.add_dek(DekEpoch(2), bytes(range(32)))
    digest = keys.zeroize_dek(DekEpoch(1))
    zeros = b"crypto.zeroize_context" + (1).to_bytes(4, "little") + bytes(32)
    assert digest == hashlib.sha256(zeros).hexdigest()
    with pytest.raises(KeyUnavailable):
        keys.log_key(DekEpoch(1), PartitionId(7), ONE)
    with pytest.raises(LogMisuse):
        keys.zeroize_dek(DekEpoch(2))
    with pytest.raises(KeyEpochReplay):
        keys.add_dek(DekEpoch(1), bytes(32))


def test_an_empty_ring_says_so() -> None:
    with pytest.raises(KeyUnavailable):
        _ = KeyRing().dek_epoch
    with pytest.raises(LogMisuse):
        KeyRing().add_dek(DekEpoch(1), b"short")
