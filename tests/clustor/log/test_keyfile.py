"""A key ring at rest: it opens with its own key and with no other."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustor.log.errors import KeyUnavailable, LogError
from clustor.log.keyfile import (
    KeyRingFile,
    decode_keyring,
    encode_keyring,
    kek_fingerprint,
    open_keyring,
    parse_kek,
    wrap_key,
)
from clustor.log.types import DekEpoch, LogId, PartitionId

KEK = bytes(range(32))
RING = KeyRingFile(
    kek_version=1,
    kek_fingerprint=kek_fingerprint(KEK),
    deks=(wrap_key(KEK, 1, b"a" * 32), wrap_key(KEK, 2, b"b" * 32)),
    macs=(wrap_key(KEK, 1, b"c" * 32),),
)


def test_a_ring_survives_its_file_and_hides_its_keys() -> None:
    data = encode_keyring(RING)
    assert (b"a" * 32).hex().encode() not in data
    keys = open_keyring(decode_keyring(data), KEK)
    assert (keys.dek_epoch, keys.mac_epoch) == (2, 1)
    same = open_keyring(RING, KEK)
    place = (DekEpoch(1), PartitionId(1), LogId(bytes(16)))
    assert keys.log_key(*place) == same.log_key(*place)


def test_another_key_is_refused_by_name_and_never_shown() -> None:
    with pytest.raises(KeyUnavailable) as refusal:
        open_keyring(RING, bytes(32))
    assert kek_fingerprint(KEK) in str(refusal.value)
    assert bytes(32).hex() not in str(refusal.value)
    with pytest.raises(KeyUnavailable) as refusal:
        parse_kek("not the secret")
    assert "secret" not in str(refusal.value)


def test_a_damaged_key_is_refused() -> None:
    bent = wrap_key(KEK, 1, b"a" * 32)
    flipped = bent.wrapped[:-1] + ("0" if bent.wrapped[-1] != "0" else "1")
    for wrapped in (flipped, "zz", "00"):
        ring = KeyRingFile(1, RING.kek_fingerprint, (type(bent)(1, wrapped),), ())
        with pytest.raises(KeyUnavailable):
            open_keyring(ring, KEK)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_ring_or_a_typed_refusal(data: bytes) -> None:
    with suppress(LogError):
        decode_keyring(data)
