"""Durability proofs (clustor §9.8): signed, strictly monotone per partition, conflicts latched.

Of two tuples of a partition the higher one stands. A lower one is late, as a deposed leader's
may be: it is refused and forgotten. One that contradicts what stands (the same term and index
with another segment, writer or epoch; an epoch or, within a term, a segment that goes back) is
a conflict. It stays until an operator has looked, and until then nothing is published.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.control.calls import Command
from clustor.control.draft import Draft, DraftReading
from clustor.control.objects import ControlObject, key_of
from clustor.control.placement import Placement, voters_of
from clustor.control.rbac import CallerAuthority
from clustor.control.signing import Signature, sign, verifies
from clustor.control.types import Count, KeyPurpose, Text, WriterMode
from clustor.kv import Key
from clustor.log.types import (
    DurabilityModeEpoch,
    IoWriterMode,
    LogIndex,
    PartitionId,
    SegmentSeq,
    Term,
)
from clustor.raft.types import DurabilityTuple

PROOFS_MAX: Final = 2_048  # in one command: about 0.6 MiB, and an entry holds 1 MiB (clustor §7.1)


class ProofTuple(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """DurabilityProofTupleV1 without its signature: what the signature covers."""

    partition_id: Count
    last_durable_term: Count
    last_durable_index: Count
    segment_seq: Count
    io_writer_mode: WriterMode
    durability_mode_epoch: Count
    updated_at: Count

    def proven(self) -> DurabilityTuple:
        """Return the equality subset, as a group compares it with its ledger."""
        return DurabilityTuple(
            Term(self.last_durable_term),
            LogIndex(self.last_durable_index),
            SegmentSeq(self.segment_seq),
            IoWriterMode[self.io_writer_mode.name],
            DurabilityModeEpoch(self.durability_mode_epoch),
        )


class SignedProof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    proof: ProofTuple
    controlplane_signature: Signature


class PublishedProof(ControlObject, frozen=True, kw_only=True):
    """The newest proof of a partition."""

    PREFIX: ClassVar[str] = "proof/"
    proof: ProofTuple
    controlplane_signature: Signature
    published_by: Count

    def key(self) -> Key:
        return key_of(PublishedProof, self.proof.partition_id)


class ProofConflict(ControlObject, frozen=True, kw_only=True):
    """Two proofs that cannot both be true; it stands until an operator clears it."""

    PREFIX: ClassVar[str] = "proof_conflict/"
    partition_id: Count
    held: SignedProof
    rival: SignedProof
    reported_by: Count
    seen_at: Count

    def key(self) -> Key:
        return key_of(ProofConflict, self.partition_id)


class ProofVerdict(StrEnum):
    """What became of one proof of a batch."""

    PUBLISHED = "Published"
    REFRESHED = "Refreshed"  # the same tuple, with a later `updated_at`
    SUPERSEDED = "Superseded"  # lower than what stands: it would regress
    CONFLICT = "ControlPlaneProofConflict"
    BAD_SIGNATURE = "BadSignature"
    UNKNOWN_PARTITION = "UnknownPartition"
    NOT_A_VOTER = "NotAVoter"
    EPOCH_AHEAD = "DurabilityModeEpochConflict"  # the control plane never gave this epoch out
    FUTURE_STAMP = "FutureStamp"  # later than the call that carries it: it would live too long


def judge(held: ProofTuple | None, fresh: ProofTuple) -> ProofVerdict:
    """Compare a proof with the one that stands (§9.8)."""
    if held is None:
        return ProofVerdict.PUBLISHED
    old, new = held.proven(), fresh.proven()
    if new == old:
        later = fresh.updated_at > held.updated_at
        return ProofVerdict.REFRESHED if later else ProofVerdict.SUPERSEDED
    if (new.term, new.index) == (old.term, old.index):
        return ProofVerdict.CONFLICT
    higher, lower = (new, old) if new.rank() > old.rank() else (old, new)
    epoch_back = higher.durability_mode_epoch < lower.durability_mode_epoch
    segment_back = higher.term == lower.term and higher.segment_seq < lower.segment_seq
    if epoch_back or segment_back:
        return ProofVerdict.CONFLICT
    return ProofVerdict.PUBLISHED if higher is new else ProofVerdict.SUPERSEDED


def proof_of(partition_id: PartitionId, proven: DurabilityTuple, updated_at: int) -> ProofTuple:
    """Turn what a group wants published into the tuple that is signed."""
    return ProofTuple(
        partition_id=partition_id,
        last_durable_term=proven.term,
        last_durable_index=proven.index,
        segment_seq=proven.segment_seq,
        io_writer_mode=WriterMode[proven.io_writer_mode.name],
        durability_mode_epoch=proven.durability_mode_epoch,
        updated_at=updated_at,
    )


def sign_proofs(
    private_key: Ed25519PrivateKey, key_id: str, proofs: Iterable[ProofTuple]
) -> tuple[SignedProof, ...]:
    """Sign a batch, as the control plane's leader does before it proposes it."""
    purpose = KeyPurpose.CONTROL_PLANE_PROOF
    return tuple(
        SignedProof(proof=proof, controlplane_signature=sign(private_key, key_id, purpose, proof))
        for proof in proofs
    )


def proof_verifies(store: DraftReading, proof: ProofTuple, signature: Signature) -> bool:
    """Say whether a key of the registry that was active then signed the proof."""
    purpose = KeyPurpose.CONTROL_PLANE_PROOF
    return verifies(store, purpose, proof, signature, proof.updated_at)


class PublishProofs(Command, frozen=True, kw_only=True):
    """Publish the proofs of all groups that a node leads, in one proposal (ruling C7)."""

    node_id: Count
    proofs: Annotated[tuple[SignedProof, ...], msgspec.Meta(min_length=1, max_length=PROOFS_MAX)]

    def essence(self) -> object:
        """Return the wishes without stamps and signatures: each leader makes those anew."""
        return [
            "PublishProofs",
            self.node_id,
            [msgspec.structs.replace(signed.proof, updated_at=0) for signed in self.proofs],
        ]


class ClearProofConflict(Command, frozen=True, kw_only=True):
    """Forget a conflict and the proof that stood: the operator has mended the control plane."""

    partition_id: Count
    justification: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


class ConflictCleared(ControlObject, frozen=True, kw_only=True):
    """The newest clearing of a partition's conflict; nodes forget both proofs when they see it."""

    PREFIX: ClassVar[str] = "proof_conflict_cleared/"
    partition_id: Count
    cleared_at: Count
    cleared_by: Text
    justification: Text

    def key(self) -> Key:
        return key_of(ConflictCleared, self.partition_id)


def on_publish_proofs(
    draft: Draft, authority: CallerAuthority, command: PublishProofs
) -> dict[str, Any]:
    authority.require_node(command.node_id)
    verdicts = {
        signed.proof.partition_id: _publish(draft, command.node_id, signed)
        for signed in command.proofs
    }
    # The audit trail keeps the answer, once a second for each node: what went well is a number.
    others = {
        str(partition_id): verdict
        for partition_id, verdict in verdicts.items()
        if verdict is not ProofVerdict.PUBLISHED
    }
    return {"published": len(verdicts) - len(others), "others": others}


def verdicts_of(
    partitions: Iterable[PartitionId], result: Mapping[str, Any]
) -> dict[PartitionId, ProofVerdict]:
    """Read the result of a PublishProofs for the partitions that were in it."""
    others = result["others"]
    return {
        partition_id: ProofVerdict(others.get(str(partition_id), ProofVerdict.PUBLISHED))
        for partition_id in partitions
    }


def _publish(draft: Draft, node_id: int, signed: SignedProof) -> ProofVerdict:
    proof = signed.proof
    placement = draft.find(Placement, proof.partition_id)
    if placement is None:
        return ProofVerdict.UNKNOWN_PARTITION
    if node_id not in voters_of(placement):
        return ProofVerdict.NOT_A_VOTER
    if proof.durability_mode_epoch > placement.durability_mode_epoch:
        return ProofVerdict.EPOCH_AHEAD
    if proof.updated_at > draft.now_ms:
        return ProofVerdict.FUTURE_STAMP
    if draft.find(ProofConflict, proof.partition_id) is not None:
        return ProofVerdict.CONFLICT
    held = draft.find(PublishedProof, proof.partition_id)
    verdict = judge(held.proof if held is not None else None, proof)
    if verdict is ProofVerdict.SUPERSEDED:
        return verdict
    if not proof_verifies(draft.store, proof, signed.controlplane_signature):
        return ProofVerdict.BAD_SIGNATURE
    if verdict is ProofVerdict.CONFLICT:
        assert held is not None
        _latch(draft, node_id, held, signed)
    else:
        draft.put(
            PublishedProof(
                proof=proof,
                controlplane_signature=signed.controlplane_signature,
                published_by=node_id,
            )
        )
    return verdict


def _latch(draft: Draft, node_id: int, held: PublishedProof, rival: SignedProof) -> None:
    stands = SignedProof(proof=held.proof, controlplane_signature=held.controlplane_signature)
    draft.put(
        ProofConflict(
            partition_id=held.proof.partition_id,
            held=stands,
            rival=rival,
            reported_by=node_id,
            seen_at=draft.now_ms,
        )
    )


def on_clear_proof_conflict(
    draft: Draft, authority: CallerAuthority, command: ClearProofConflict
) -> dict[str, Any]:
    draft.need(ProofConflict, command.partition_id)
    draft.delete(ProofConflict, command.partition_id)
    draft.delete(PublishedProof, command.partition_id)
    draft.put(
        ConflictCleared(
            partition_id=command.partition_id,
            cleared_at=draft.now_ms,
            cleared_by=authority.identity,
            justification=command.justification,
        )
    )
    return {"cleared_at": draft.now_ms}
