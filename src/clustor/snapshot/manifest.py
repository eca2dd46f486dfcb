"""The manifest: what a snapshot is made of, in canonical JSON, hashed and signed (clustor §7.1).

A manifest has exactly one encoding (RFC 8785), and the decoder takes no other: so a flipped bit
anywhere in the file is seen, and the hash of the file identifies the manifest.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import UNSET, Meta, UnsetType

from clustor.log.types import DekEpoch, LogIndex, Term
from clustor.snapshot.errors import (
    MalformedManifest,
    ManifestHashMismatch,
    ManifestSignatureInvalid,
    ManifestTooLarge,
    SnapshotMisuse,
)
from clustor.snapshot.types import (
    JSON_INTEGER_MAX,
    ChunkId,
    HexDigest,
    IvSalt,
    ManifestId,
    SnapshotKind,
    digest_bytes,
    hex_digest,
)

MANIFEST_BYTES_MAX: Final = 16 * 2**20
"""Room for about 95,000 chunks: 90 GiB of state in chunks of 1 MiB."""

CHUNK_BYTES_MAX: Final = 64 * 2**20
"""A reader holds one whole chunk, so a manifest may not promise a larger one."""

_HEX16 = r"^0x[0-9a-f]{32}$"
_HEX32 = r"^0x[0-9a-f]{64}$"
_HEX64 = r"^0x[0-9a-f]{128}$"
_UUID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_UUID7 = r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
_Count = Annotated[int, Meta(ge=0, le=JSON_INTEGER_MAX)]
_Name = Annotated[str, Meta(min_length=1, max_length=256)]
_Digest = Annotated[HexDigest, Meta(pattern=_HEX32)]
_Id = Annotated[ManifestId, Meta(pattern=_UUID7)]


class SnapshotChunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One piece of the content. `offset` and `len` count plaintext, `digest` is of the file."""

    chunk_id: Annotated[ChunkId, Meta(pattern=_UUID)]
    digest: _Digest
    len: Annotated[int, Meta(ge=0, le=CHUNK_BYTES_MAX)]
    offset: _Count


class Encryption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dek_epoch: Annotated[DekEpoch, Meta(ge=0, le=2**32 - 1)]
    iv_salt: Annotated[str, Meta(pattern=_HEX16)]


class LogicalMarker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A point of the log that the product wants to find again, such as a fence."""

    name: _Name
    log_index: Annotated[LogIndex, Meta(ge=0, le=JSON_INTEGER_MAX)]


class DedupShard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The digest of one shard of the product's dedupe tables, checked after a restore."""

    shard_id: _Count
    digest: _Digest


class CommitEpoch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An epoch that was in force at `base_index`, such as `durability_mode_epoch`."""

    name: _Name
    epoch: _Count


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every member of clustor §7.1. `content_hash` and `signature` cover all the others."""

    manifest_id: _Id
    version_id: _Count
    producer_version: _Name
    emit_version: _Count
    base_term: Annotated[Term, Meta(ge=0, le=JSON_INTEGER_MAX)]
    base_index: Annotated[LogIndex, Meta(ge=0, le=JSON_INTEGER_MAX)]
    snapshot_kind: SnapshotKind
    delta_parent_manifest_id: _Id | UnsetType = UNSET
    delta_chain_length: _Count
    encryption: Encryption
    chunks: Annotated[tuple[SnapshotChunk, ...], Meta(min_length=1)]
    logical_markers: tuple[LogicalMarker, ...] = ()
    ap_pane_digest: _Digest
    dedup_shards: tuple[DedupShard, ...] = ()
    commit_epoch_vector: tuple[CommitEpoch, ...] = ()
    content_hash: _Digest = HexDigest("")
    signature: Annotated[str, Meta(pattern=_HEX64)] = ""

    @property
    def parent(self) -> ManifestId | None:
        """The manifest that a delta builds on; None for a full snapshot."""
        parent = self.delta_parent_manifest_id
        return None if parent is UNSET else parent

    @property
    def iv_salt(self) -> IvSalt:
        return IvSalt(bytes.fromhex(self.encryption.iv_salt[2:]))

    @property
    def content_bytes(self) -> int:
        """The length of the content, decrypted."""
        last = self.chunks[-1]
        return last.offset + last.len


_decoder = msgspec.json.Decoder(Manifest, strict=True)


def canonical_json(members: Mapping[str, object]) -> bytes:
    """Encode an object by RFC 8785."""
    try:
        return rfc8785.dumps(dict(members))  # type: ignore[arg-type]  # its type is a closed union
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise SnapshotMisuse("this has no canonical JSON", cause=str(error)) from error


def signed_bytes(members: Mapping[str, object]) -> bytes:
    """Return what is hashed and signed: all members but `content_hash` and `signature`."""
    covered = {k: v for k, v in members.items() if k not in ("content_hash", "signature")}
    return canonical_json(covered)


def content_hash(members: Mapping[str, object]) -> HexDigest:
    """Hash a manifest's members by clustor §7.1; ruling C3 pins the published vector."""
    return hex_digest(hashlib.sha256(signed_bytes(members)).digest())


def seal_manifest(draft: Manifest, key: Ed25519PrivateKey) -> Manifest:
    """Fill in `content_hash` and `signature`, and check the result as a reader would."""
    covered = signed_bytes(msgspec.to_builtins(draft))
    sealed = msgspec.structs.replace(
        draft,
        content_hash=hex_digest(hashlib.sha256(covered).digest()),
        signature="0x" + key.sign(covered).hex(),
    )
    try:
        decode_manifest(encode_manifest(sealed))
    except (MalformedManifest, ManifestTooLarge) as error:
        raise SnapshotMisuse("this manifest could not be read back", cause=str(error)) from error
    return sealed


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the file: canonical JSON of every member."""
    return canonical_json(msgspec.to_builtins(manifest))


def manifest_hash(encoded: bytes) -> bytes:
    """Return what an authorisation records: the SHA-256 of the whole file."""
    return hashlib.sha256(encoded).digest()


def decode_manifest(data: bytes, *, bytes_max: int = MANIFEST_BYTES_MAX) -> Manifest:
    """Read a manifest, strictly; its hash and its signature are not checked here.

    Raises ManifestTooLarge before anything is parsed, and MalformedManifest for a member that
    is missing, unknown or of the wrong type, for chunks that leave gaps, for a kind that
    contradicts its parent, and for any encoding but the canonical one.
    """
    if len(data) > bytes_max:
        raise ManifestTooLarge("the manifest is too large", bytes=len(data), limit=bytes_max)
    try:
        manifest = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedManifest("not a manifest", cause=str(error)) from error
    _check_chunks(manifest.chunks)
    _check_kind(manifest)
    _check_canonical(manifest, data)
    return manifest


def _check_chunks(chunks: Sequence[SnapshotChunk]) -> None:
    """Chunks follow each other without gap, and no two share a file."""
    offset = 0
    for chunk in chunks:
        if chunk.offset != offset:
            raise MalformedManifest("chunks leave a gap", offset=chunk.offset, expected=offset)
        offset += chunk.len
    if len({chunk.chunk_id for chunk in chunks}) != len(chunks):
        raise MalformedManifest("a chunk id occurs twice", chunks=len(chunks))
    if len(chunks) > 1 and any(chunk.len == 0 for chunk in chunks):
        raise MalformedManifest("only the sole chunk may be empty", chunks=len(chunks))


def _check_kind(manifest: Manifest) -> None:
    """A delta has a parent and a length from 1; a full snapshot has neither."""
    is_delta = manifest.snapshot_kind is SnapshotKind.DELTA
    has_parent = manifest.parent is not None
    if has_parent != is_delta or (manifest.delta_chain_length > 0) != is_delta:
        raise MalformedManifest(
            "the kind contradicts the chain",
            snapshot_kind=manifest.snapshot_kind.value,
            delta_parent_manifest_id=manifest.parent,
            delta_chain_length=manifest.delta_chain_length,
        )


def _check_canonical(manifest: Manifest, data: bytes) -> None:
    # `content_hash` and `signature` have defaults for drafts only; absent ones fail here too,
    # because the encoding below writes them out.
    try:
        canonical = encode_manifest(manifest)
    except SnapshotMisuse as error:
        raise MalformedManifest("not canonical JSON", cause=str(error)) from error
    if canonical != data:
        raise MalformedManifest("not the canonical encoding", manifest_id=manifest.manifest_id)


def verify_manifest(manifest: Manifest, keys: Sequence[Ed25519PublicKey]) -> None:
    """Check the hash, and that one of the trusted SnapshotManifestKeys signed it.

    More than one key is trusted while a rotation is under way (clustor §12.4).
    """
    covered = signed_bytes(msgspec.to_builtins(manifest))
    found = hashlib.sha256(covered).digest()
    if not hmac.compare_digest(found, digest_bytes(manifest.content_hash)):
        raise ManifestHashMismatch("the content hash differs", manifest_id=manifest.manifest_id)
    signature = bytes.fromhex(manifest.signature[2:])
    for key in keys:
        try:
            key.verify(signature, covered)
        except InvalidSignature:
            continue
        return
    raise ManifestSignatureInvalid(
        "no trusted key signed this", manifest_id=manifest.manifest_id, keys_tried=len(keys)
    )
