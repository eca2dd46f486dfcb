"""The feature manifest and its gates (clustor §14.2)."""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Any, ClassVar

import msgspec

from clustor.control.calls import Command
from clustor.control.draft import Draft, Refuse, prefix_of, scan_records
from clustor.control.nodes import NodeSpec
from clustor.control.objects import ControlObject, key_of
from clustor.control.proofs import ProofConflict
from clustor.control.rbac import CallerAuthority
from clustor.control.signing import Signature, require_signature
from clustor.control.types import Count, Digest, Identity, KeyPurpose, RefusalCode
from clustor.kv import Key


class Feature(StrEnum):
    """The features that §14.2 gates."""

    LEADER_LEASES = "LeaseEnable"
    INCREMENTAL_SNAPSHOTS = "SnapshotDeltaEnable"
    OBSERVER_ADMISSION = "ObserverAdmission"
    BLAKE3_LEAVES = "Blake3Leaves"
    PID_AUTO_TUNER = "PidAutoTuner"
    GROUP_FSYNC = "GroupFsync"


class FeatureRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A feature with the predicate under which it may be on, in words that are digested."""

    name: Feature
    predicate: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]

    @property
    def predicate_digest(self) -> bytes:
        return sha256(self.predicate.encode()).digest()


class FeatureManifest(ControlObject, frozen=True, kw_only=True):
    PREFIX: ClassVar[str] = "feature_manifest/"
    version: Count
    rows: tuple[FeatureRow, ...]
    signature: Signature
    published_at: Count

    def key(self) -> Key:
        return key_of(FeatureManifest, "manifest")

    def row(self, name: Feature) -> FeatureRow | None:
        return next((row for row in self.rows if row.name is name), None)


class GateState(StrEnum):
    ENABLED = "Enabled"
    DISABLED = "Disabled"


class FeatureGate(ControlObject, frozen=True, kw_only=True):
    """Whether a feature may be on; nodes compare the digest with that of their own predicate."""

    PREFIX: ClassVar[str] = "feature_gate/"
    name: Feature
    state: GateState
    predicate_digest: Digest
    changed_at: Count
    changed_by: Identity

    def key(self) -> Key:
        return key_of(FeatureGate, self.name.value)


class ManifestContent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the manifest's signature covers."""

    version: Count
    rows: tuple[FeatureRow, ...]


class PublishFeatureManifest(Command, frozen=True, kw_only=True):
    """Replace the feature manifest, signed by the CPReleaseKey."""

    version: Count
    rows: Annotated[tuple[FeatureRow, ...], msgspec.Meta(max_length=64)]
    signature: Signature

    def content(self) -> ManifestContent:
        return ManifestContent(version=self.version, rows=self.rows)


class SetFeatureGate(Command, frozen=True, kw_only=True):
    """Open or close a gate. To open it every node must support the feature."""

    name: Feature
    state: GateState
    predicate_digest: Digest


def on_publish_feature_manifest(
    draft: Draft, authority: CallerAuthority, command: PublishFeatureManifest
) -> dict[str, Any]:
    held = draft.find(FeatureManifest, "manifest")
    expected = held.version + 1 if held is not None else 1
    if command.version != expected:
        raise Refuse(RefusalCode.CONFLICT, "manifests follow each other", expected=expected)
    if len({row.name for row in command.rows}) != len(command.rows):
        raise Refuse(RefusalCode.INVALID, "a feature has one row")
    require_signature(draft, KeyPurpose.CP_RELEASE, command.content(), command.signature)
    manifest = FeatureManifest(
        version=command.version,
        rows=command.rows,
        signature=command.signature,
        published_at=draft.now_ms,
    )
    draft.put(manifest)
    _close_orphans(draft, authority, manifest)
    return {"version": command.version}


def _close_orphans(draft: Draft, authority: CallerAuthority, manifest: FeatureManifest) -> None:
    """Close the gates whose predicate the new manifest changed or dropped."""
    for gate in draft.scan(FeatureGate):
        row = manifest.row(gate.name)
        if row is None or row.predicate_digest != gate.predicate_digest:
            draft.put(
                msgspec.structs.replace(
                    gate,
                    state=GateState.DISABLED,
                    changed_at=draft.now_ms,
                    changed_by=authority.identity,
                )
            )


def on_set_feature_gate(
    draft: Draft, authority: CallerAuthority, command: SetFeatureGate
) -> dict[str, Any]:
    manifest = draft.need(FeatureManifest, "manifest")
    row = manifest.row(command.name)
    if row is None:
        raise Refuse(RefusalCode.NOT_FOUND, "the manifest has no such feature", name=command.name)
    if row.predicate_digest != command.predicate_digest:
        raise Refuse(
            RefusalCode.PREDICATE_MISMATCH,
            "the manifest has another predicate",
            predicate_digest=row.predicate_digest,
        )
    if command.state is GateState.ENABLED:
        _require_support(draft, command.name)
    draft.put(
        FeatureGate(
            name=command.name,
            state=command.state,
            predicate_digest=row.predicate_digest,
            changed_at=draft.now_ms,
            changed_by=authority.identity,
        )
    )
    return {"state": command.state}


def _require_support(draft: Draft, name: Feature) -> None:
    lacking = [node.node_id for node in draft.scan(NodeSpec) if name.value not in node.features]
    if lacking:
        raise Refuse(RefusalCode.NOT_SUPPORTED, "not every node supports it", nodes=lacking[:32])
    if next(scan_records(draft.store, prefix_of(ProofConflict)), None) is not None:
        raise Refuse(RefusalCode.PROOF_CONFLICT, "a proof conflict holds strict fallback")
