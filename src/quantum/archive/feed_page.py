"""The bytes of the feed: what a reader asks, and the page that it gets. Pure.

A reader proves that it has the tenant's keys, and the page is sealed with them: whoever listens
on the admin port, or asks without the keys, learns how far a log goes and nothing that is in it.

    length:u32 (little-endian)  head (JSON)  entry frames, sealed with AES-256-GCM

The head is what the seal also vouches for, so a page cannot be given for another one.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from clustor.log.errors import AuthenticationFailed, KeyUnavailable
from clustor.log.frame import decode_frames, encode_frames
from clustor.log.keys import KeyRing
from clustor.log.types import DekEpoch, Entry, LogId, MacEpoch, PartitionId

PAGE_BYTES_DEFAULT: Final = 1 << 20
PAGE_BYTES_MAX: Final = 8 << 20
PROOF_AGE_MS_MAX: Final = 300_000
NONCE_BYTES: Final = 12
_DOMAIN: Final = LogId(b"quantum feed v1\x00")
_NAME_DOMAIN: Final = LogId(b"quantum key name")
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class FeedRequest:
    """The entries from `first` on, about `bytes_max` of them, asked at a time of day."""

    tenant: str
    prg: int
    first: int
    bytes_max: int
    at_ms: int

    def text(self) -> bytes:
        return f"{self.tenant}/{self.prg} {self.first} {self.bytes_max} {self.at_ms}".encode()


class PageHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a page holds: `count` entries from `first` on.

    The log reaches from `log_first` through `log_last`, as far as this replica vouches for it.
    """

    prg: str
    first: int
    count: int
    log_first: int
    log_last: int
    dek_epoch: int
    nonce: str
    format_version: int = 1


def key_name(keys: KeyRing) -> str:
    """Name a ring without giving it away: two rings with one name are one."""
    key = keys.mac_key(keys.mac_epoch, PartitionId(0), _NAME_DOMAIN)
    return f"key {hashlib.sha256(key).hexdigest()[:12]} (epoch {keys.mac_epoch})"


def prove(request: FeedRequest, keys: KeyRing, partition: PartitionId) -> str:
    """Return the proof that goes with a request: the key's epoch, and a MAC."""
    epoch = keys.mac_epoch
    key = keys.mac_key(epoch, partition, _DOMAIN)
    return f"{epoch}.{hmac.digest(key, request.text(), 'sha256').hex()}"


def is_proven(
    request: FeedRequest, proof: str, keys: KeyRing, partition: PartitionId, now_ms: int
) -> bool:
    """Say whether who asks has the tenant's keys, and asks now."""
    if abs(now_ms - request.at_ms) > PROOF_AGE_MS_MAX:
        return False
    epoch, _, mac = proof.partition(".")
    if not epoch.isdecimal() or len(epoch) > 9:
        return False
    try:
        key = keys.mac_key(MacEpoch(int(epoch)), partition, _DOMAIN)
    except KeyUnavailable:
        return False
    expected = hmac.digest(key, request.text(), "sha256").hex()
    return hmac.compare_digest(mac.encode(), expected.encode())


def encode_page(
    entries: list[Entry], head: PageHead, keys: KeyRing, partition: PartitionId
) -> bytes:
    """Seal entries; the head says which they are, and its nonce is drawn for this page."""
    key = keys.log_key(DekEpoch(head.dek_epoch), partition, _DOMAIN)
    encoded = msgspec.json.encode(head)
    plain = encode_frames(entries).plaintext
    sealed = AESGCM(key).encrypt(bytes.fromhex(head.nonce), plain, encoded)
    return _LENGTH.pack(len(encoded)) + encoded + sealed


def decode_page(data: bytes, keys: KeyRing, partition: PartitionId) -> tuple[PageHead, list[Entry]]:
    """Open a page. Raises AuthenticationFailed, KeyUnavailable and what frames raise."""
    try:
        (length,) = _LENGTH.unpack_from(data)
        encoded = data[_LENGTH.size : _LENGTH.size + length]
        head = msgspec.json.decode(encoded, type=PageHead)
        nonce = bytes.fromhex(head.nonce)
    except (struct.error, msgspec.MsgspecError, ValueError) as error:
        raise AuthenticationFailed("not a page of the feed") from error
    key = keys.log_key(DekEpoch(head.dek_epoch), partition, _DOMAIN)
    try:
        plain = AESGCM(key).decrypt(nonce, data[_LENGTH.size + length :], encoded)
    except (InvalidTag, ValueError) as error:
        raise AuthenticationFailed("a page of the feed is not authentic") from error
    return head, decode_frames(plain, head.first, head.count).entries
