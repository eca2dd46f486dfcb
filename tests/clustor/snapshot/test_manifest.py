"""The manifest: the published vector, strict decoding, hash and signature."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from clustor.snapshot.errors import (
    MalformedManifest,
    ManifestHashMismatch,
    ManifestRejected,
    ManifestSignatureInvalid,
    ManifestTooLarge,
)
from clustor.snapshot.manifest import (
    Manifest,
    content_hash,
    decode_manifest,
    encode_manifest,
    seal_manifest,
    verify_manifest,
)
from clustor.snapshot.types import SnapshotKind, emit_ts_ms, new_manifest_id
from tests.clustor.snapshot.support import SIGNER, TRUSTED, Replica, patient, request

PUBLISHED: dict[str, Any] = {
    "base_index": 4096,
    "base_term": 7,
    "chunks": [
        {
            "chunk_id": "00000000-0000-0000-0000-000000000001",
            "digest": "0x" + "aa" * 32,
            "len": 1048576,
            "offset": 0,
        }
    ],
    "content_hash": "0xb1caf4297447b97c418f5c52ac1b922c3c32022f61d59f73c462931b89d6ad86",
    "emit_version": 1,
    "encryption": {"dek_epoch": 3, "iv_salt": "0x000102030405060708090a0b0c0d0e0f"},
    "logical_markers": [],
    "manifest_id": "018c0d6c-9c11-7e9d-8000-86f5bb8c0001",
    "producer_version": "clustor-test",
    "version_id": 12,
    "snapshot_kind": "Full",
    "ap_pane_digest": "0x...",
    "dedup_shards": [],
    "commit_epoch_vector": [],
}
LATER_MEMBERS = ("snapshot_kind", "ap_pane_digest", "dedup_shards", "commit_epoch_vector")


def written() -> Manifest:
    return Replica().emit(request(1, 100), {"a": "1", "b": "2" * 90})


def members(manifest: Manifest) -> dict[str, Any]:
    return dict(msgspec.to_builtins(manifest))


def compact(whole: dict[str, Any]) -> bytes:
    """Encode as RFC 8785 does for plain ASCII, but without its refusals."""
    return json.dumps(whole, separators=(",", ":"), sort_keys=True).encode()


def test_c3_the_published_hash_leaves_out_the_four_later_members() -> None:
    older = {k: v for k, v in PUBLISHED.items() if k not in LATER_MEMBERS}
    assert content_hash(older) == PUBLISHED["content_hash"]


def test_c3_a_real_manifest_hashes_all_members_but_the_hash_and_the_signature() -> None:
    manifest = written()
    for name in members(manifest):
        rest = {k: v for k, v in members(manifest).items() if k != name}
        covered = name not in ("content_hash", "signature")
        assert (content_hash(rest) != manifest.content_hash) is covered, name


def test_the_published_manifest_id_carries_its_emission_time() -> None:
    assert emit_ts_ms(PUBLISHED["manifest_id"]) == 0x018C0D6C9C11
    made = new_manifest_id(0x018C0D6C9C11, bytes.fromhex("0e9d800086f5bb8c0001"))
    assert made == PUBLISHED["manifest_id"]


def test_what_is_encoded_is_decoded_and_verified() -> None:
    manifest = written()
    assert decode_manifest(encode_manifest(manifest)) == manifest
    verify_manifest(manifest, TRUSTED)
    assert json.loads(encode_manifest(manifest))["base_index"] == 100


def test_a_rotation_trusts_two_keys_and_no_third() -> None:
    other = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()
    verify_manifest(written(), (other, *TRUSTED))
    with pytest.raises(ManifestSignatureInvalid):
        verify_manifest(written(), (other,))
    with pytest.raises(ManifestSignatureInvalid):
        verify_manifest(written(), ())


def test_a_changed_member_breaks_the_hash_and_a_fixed_hash_breaks_the_signature() -> None:
    manifest = written()
    forged = msgspec.structs.replace(manifest, version_id=13)
    with pytest.raises(ManifestHashMismatch):
        verify_manifest(forged, TRUSTED)
    rehashed = msgspec.structs.replace(forged, content_hash=content_hash(members(forged)))
    with pytest.raises(ManifestSignatureInvalid):
        verify_manifest(rehashed, TRUSTED)


@pytest.mark.parametrize(
    "name", sorted({*Manifest.__struct_fields__} - {"delta_parent_manifest_id"})
)
def test_a_missing_member_is_refused(name: str) -> None:
    whole = members(written())
    del whole[name]
    with pytest.raises(MalformedManifest):
        decode_manifest(rfc8785.dumps(whole))


ODD: dict[str, dict[str, Any]] = {
    "unknown member": {"surprise": 1},
    "unknown kind": {"snapshot_kind": "Partial"},
    "number as string": {"base_index": "100"},
    "fraction": {"base_index": 100.5},
    "negative": {"base_index": -1},
    "null": {"base_term": None},
    "too wide": {"emit_version": 2**53},
    "digest without 0x": {"ap_pane_digest": "aa" * 33},
    "digest in upper case": {"ap_pane_digest": "0x" + "AA" * 32},
    "digest too short": {"ap_pane_digest": "0x" + "aa" * 31},
    "no chunks": {"chunks": []},
    "empty producer": {"producer_version": ""},
    "not a UUIDv7": {"manifest_id": "00000000-0000-0000-0000-000000000001"},
    "a path as an id": {"manifest_id": "../../etc/passwd"},
    "full with a parent": {"delta_parent_manifest_id": PUBLISHED["manifest_id"]},
    "full with a length": {"delta_chain_length": 1},
    "delta without a parent": {"snapshot_kind": "Delta", "delta_chain_length": 1},
    "unknown in encryption": {
        "encryption": {"dek_epoch": 3, "iv_salt": "0x" + "00" * 16, "more": 1}
    },
    "key epoch too wide": {"encryption": {"dek_epoch": 2**32, "iv_salt": "0x" + "00" * 16}},
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD.keys())
def test_an_odd_member_is_refused(change: dict[str, Any]) -> None:
    whole = members(written())
    decode_manifest(compact(whole))
    with pytest.raises(MalformedManifest):
        decode_manifest(compact({**whole, **change}))


@pytest.mark.parametrize(
    "edit",
    [
        lambda chunks: chunks[1:],
        lambda chunks: [chunks[0], *chunks],
        lambda chunks: [chunks[0], {**chunks[1], "chunk_id": chunks[0]["chunk_id"]}, *chunks[2:]],
        lambda chunks: [{**chunks[0], "len": 63}, *chunks[1:]],
        lambda chunks: [{**chunks[0], "len": 2**40}],
        lambda chunks: [{**chunks[0], "chunk_id": "../manifest.json"}, *chunks[1:]],
        lambda chunks: [*chunks, {**chunks[0], "chunk_id": PUBLISHED["manifest_id"], "len": 0}],
    ],
    ids=["gap", "overlap", "one file twice", "short", "vast", "path", "empty among others"],
)
def test_chunks_that_do_not_fit_together_are_refused(edit: Any) -> None:
    whole = members(written())
    assert len(whole["chunks"]) == 2
    with pytest.raises(MalformedManifest):
        decode_manifest(compact({**whole, "chunks": edit(list(whole["chunks"]))}))


def test_only_the_canonical_encoding_is_taken() -> None:
    manifest = written()
    pretty = json.dumps(members(manifest)).encode()
    shuffled = json.dumps(dict(reversed(members(manifest).items())), separators=(",", ":")).encode()
    doubled = encode_manifest(manifest).replace(b'"base_term":1', b'"base_term":1,"base_term":1')
    for other in (pretty, shuffled, doubled, encode_manifest(manifest) + b"\n"):
        with pytest.raises(MalformedManifest):
            decode_manifest(other)


def test_an_oversized_manifest_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ManifestTooLarge) as caught:
        decode_manifest(b"{" * 1000, bytes_max=999)
    assert caught.value.facts == {"bytes": 1000, "limit": 999}


@patient
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_with_a_typed_error(data: bytes) -> None:
    with pytest.raises(ManifestRejected):
        decode_manifest(data)


@patient
@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
    )
)
def test_any_json_is_refused_with_a_typed_error(value: Any) -> None:
    with pytest.raises(ManifestRejected):
        decode_manifest(json.dumps(value).encode())


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ManifestRejected):
        decode_manifest(b'{"chunks":' + b"[" * 100_000)


def test_every_flipped_bit_of_the_file_is_seen() -> None:
    data = encode_manifest(written())
    for at in range(len(data)):
        for bit in range(8):
            flipped = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            with pytest.raises(ManifestRejected):
                verify_manifest(decode_manifest(flipped), TRUSTED)


def test_a_delta_names_its_parent() -> None:
    replica = Replica()
    full = replica.emit(request(1, 100), {"a": "1"})
    delta = replica.emit(request(2, 200, SnapshotKind.DELTA), {"a": "2"})
    assert (full.parent, full.delta_chain_length) == (None, 0)
    assert (delta.parent, delta.delta_chain_length) == (full.manifest_id, 1)
    assert "delta_parent_manifest_id" not in json.loads(encode_manifest(full))


def test_sealing_is_deterministic() -> None:
    manifest = written()
    assert seal_manifest(manifest, SIGNER) == manifest
