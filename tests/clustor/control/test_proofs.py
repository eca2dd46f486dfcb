"""Durability proofs (clustor §9.8): signed, strictly monotone, conflicts latched."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustor.control import (
    ClearProofConflict,
    KeyPurpose,
    ProofConflict,
    ProofTuple,
    ProofVerdict,
    PublishedProof,
    PublishProofs,
    RefusalCode,
    RegisterKey,
    RetireKey,
    WriterMode,
    find,
    judge,
    proof_of,
    proof_verifies,
    sign_proofs,
)
from clustor.control.proofs import PROOFS_MAX
from clustor.log.types import PartitionId
from clustor.raft.profiles import CONSISTENCY_PROFILE
from tests.clustor.control.plane import (
    PROOF_KEY,
    RELEASE_KEY,
    START_MS,
    Plane,
    node_identity,
    proof,
    public,
    settled_plane,
)

HELD = proof(1, 10, term=3, segment=5, epoch=2, at=1_000)
V = ProofVerdict
JUDGED: dict[str, tuple[dict[str, Any], ProofVerdict]] = {
    "a later index": ({"last_durable_index": 11}, V.PUBLISHED),
    "a later term": ({"last_durable_term": 4}, V.PUBLISHED),
    "a later term, the log shorter": (
        {"last_durable_term": 4, "last_durable_index": 2},
        V.PUBLISHED,
    ),
    "a later term on another disk": (
        {"last_durable_term": 4, "last_durable_index": 11, "segment_seq": 1},
        V.PUBLISHED,
    ),
    "a later index in a new epoch": (
        {"last_durable_index": 11, "durability_mode_epoch": 3},
        V.PUBLISHED,
    ),
    "the same, later": ({"updated_at": 1_001}, V.REFRESHED),
    "the very same": ({}, V.SUPERSEDED),
    "the same, stamped earlier": ({"updated_at": 999}, V.SUPERSEDED),
    "a lower index": ({"last_durable_index": 9}, V.SUPERSEDED),
    "an earlier term": ({"last_durable_term": 2, "last_durable_index": 50}, V.SUPERSEDED),
    "one index, another segment": ({"segment_seq": 6}, V.CONFLICT),
    "one index, another epoch": ({"durability_mode_epoch": 3}, V.CONFLICT),
    "one index, another writer": ({"io_writer_mode": WriterMode.BLOCKING}, V.CONFLICT),
    "a later index, an older epoch": (
        {"last_durable_index": 11, "durability_mode_epoch": 1},
        V.CONFLICT,
    ),
    "a lower index, a newer epoch": (
        {"last_durable_index": 9, "durability_mode_epoch": 3},
        V.CONFLICT,
    ),
    "a later index of the term, an older segment": (
        {"last_durable_index": 11, "segment_seq": 4},
        V.CONFLICT,
    ),
    "a lower index of the term, a newer segment": (
        {"last_durable_index": 9, "segment_seq": 6},
        V.CONFLICT,
    ),
}


@pytest.mark.parametrize(("change", "verdict"), JUDGED.values(), ids=JUDGED.keys())
def test_two_proofs_are_compared(change: dict[str, Any], verdict: ProofVerdict) -> None:
    assert judge(HELD, msgspec.structs.replace(HELD, **change)) is verdict
    assert judge(None, msgspec.structs.replace(HELD, **change)) is V.PUBLISHED


numbers = st.integers(0, 3)
tuples = st.builds(
    lambda term, index, segment, epoch, at: proof(
        1, index, term=term, segment=segment, epoch=epoch, at=at
    ),
    numbers,
    numbers,
    numbers,
    st.just(0),
    st.integers(1, 3),
)


@given(st.lists(tuples, max_size=8))
@settings(max_examples=150, deadline=None)
def test_what_is_published_only_grows_until_a_conflict_stops_it(proofs: list[ProofTuple]) -> None:
    plane = settled_plane()
    ranks = []
    for each in proofs:
        stopped = find(plane.machine.kv, ProofConflict, 1) is not None
        verdict = plane.publish(each)["1"]
        held = find(plane.machine.kv, PublishedProof, 1)
        assert held is not None
        ranks.append((held.proof.proven().rank(), held.proof.updated_at))
        if stopped:
            assert verdict == V.CONFLICT
    assert ranks == sorted(ranks)


# What the machine does with them.


def test_a_published_proof_carries_a_signature_that_nodes_can_verify() -> None:
    plane = settled_plane()
    assert plane.publish(proof(1, 10)) == {"1": "Published"}
    held = find(plane.machine.kv, PublishedProof, 1)
    assert held is not None
    assert proof_verifies(plane.machine.kv, held.proof, held.controlplane_signature)
    for field in ("last_durable_index", "segment_seq", "updated_at", "partition_id"):
        changed = msgspec.structs.replace(held.proof, **{field: 99_999_999})
        assert not proof_verifies(plane.machine.kv, changed, held.controlplane_signature)


def test_a_batch_gets_a_verdict_for_each_of_its_proofs() -> None:
    plane = settled_plane()
    plane.place(2, 1, 2, 3)
    plane.place(3, 2, 3, 4)
    plane.publish(proof(2, 10))
    verdicts = plane.publish(proof(1, 5), proof(2, 9), proof(3, 5), proof(4, 5))
    assert verdicts == {
        "1": "Published",
        "2": "Superseded",
        "3": "NotAVoter",
        "4": "UnknownPartition",
    }


def test_an_answer_names_only_what_was_not_published() -> None:
    plane = settled_plane()
    command = PublishProofs(
        node_id=1,
        proofs=sign_proofs(PROOF_KEY, "p1", [proof(1, 5, at=START_MS), proof(9, 5, at=START_MS)]),
    )
    answer = plane.done(command, by=node_identity(1))
    assert answer == {"published": 1, "others": {"9": "UnknownPartition"}}


def test_an_epoch_that_was_never_given_out_is_refused() -> None:
    plane = settled_plane()
    assert plane.publish(proof(1, 5, epoch=1)) == {"1": "DurabilityModeEpochConflict"}


def test_a_proof_is_not_stamped_ahead_of_its_call() -> None:
    plane = settled_plane()
    assert plane.publish(proof(1, 5, at=plane.now_ms + 1)) == {"1": "FutureStamp"}
    assert plane.publish(proof(1, 5, at=plane.now_ms)) == {"1": "Published"}


def test_a_wrong_key_publishes_nothing() -> None:
    plane = settled_plane()
    stamped = [proof(1, 5, at=START_MS)]
    for key, key_id in [(RELEASE_KEY, "p1"), (PROOF_KEY, "r1"), (PROOF_KEY, "none")]:
        command = PublishProofs(node_id=1, proofs=sign_proofs(key, key_id, stamped))
        assert plane.verdicts(command) == {"1": "BadSignature"}
    assert find(plane.machine.kv, PublishedProof, 1) is None


def conflicted() -> Plane:
    plane = settled_plane()
    plane.publish(proof(1, 10))
    assert plane.publish(proof(1, 10, segment=2)) == {"1": "ControlPlaneProofConflict"}
    return plane


def test_a_conflict_is_latched_with_both_proofs_until_an_operator_clears_it() -> None:
    plane = conflicted()
    conflict = find(plane.machine.kv, ProofConflict, 1)
    assert conflict is not None
    assert (conflict.held.proof.segment_seq, conflict.rival.proof.segment_seq) == (1, 2)
    assert plane.publish(proof(1, 50)) == {"1": "ControlPlaneProofConflict"}
    held = find(plane.machine.kv, PublishedProof, 1)
    assert held is not None
    assert held.proof.last_durable_index == 10
    plane.done(ClearProofConflict(partition_id=1, justification="looked"))
    assert find(plane.machine.kv, ProofConflict, 1) is None
    assert plane.publish(proof(1, 50)) == {"1": "Published"}


def test_there_is_no_conflict_to_clear_where_none_is() -> None:
    plane = settled_plane()
    clear = ClearProofConflict(partition_id=1, justification="looked")
    assert plane.refused(clear) is RefusalCode.NOT_FOUND


def test_one_partition_s_conflict_is_not_another_s() -> None:
    plane = conflicted()
    plane.place(2)
    assert plane.publish(proof(2, 1)) == {"2": "Published"}


# Rotation (clustor §12.4: staged with overlap).


def test_keys_overlap_and_the_last_one_stays() -> None:
    plane = settled_plane()
    purpose = KeyPurpose.CONTROL_PLANE_PROOF
    retire = RetireKey(purpose=purpose, key_id="p1", retires_at=plane.now_ms + 10)
    assert plane.refused(retire) is RefusalCode.IN_USE
    plane.publish(proof(1, 1))
    plane.done(RegisterKey(purpose=purpose, key_id="p2", public_key=public(RELEASE_KEY)))
    plane.done(retire)
    held = find(plane.machine.kv, PublishedProof, 1)
    assert held is not None
    plane.now_ms += 10
    late = PublishProofs(
        node_id=1, proofs=sign_proofs(PROOF_KEY, "p1", [proof(1, 2, at=plane.now_ms)])
    )
    assert plane.verdicts(late) == {"1": "BadSignature"}
    fresh = PublishProofs(
        node_id=1, proofs=sign_proofs(RELEASE_KEY, "p2", [proof(1, 2, at=plane.now_ms)])
    )
    assert plane.verdicts(fresh) == {"1": "Published"}
    assert proof_verifies(plane.machine.kv, held.proof, held.controlplane_signature), (
        "what a key signed in its time stays good"
    )


def test_the_largest_batch_fits_an_entry() -> None:
    """Clustor §7.1: frame bodies up to 1 MiB in the ConsistencyProfile."""
    plane = settled_plane()
    big = 2**53 - 1
    widest = ProofTuple(
        partition_id=big,
        last_durable_term=big,
        last_durable_index=big,
        segment_seq=big,
        io_writer_mode=WriterMode.REGISTERED_URING,
        durability_mode_epoch=2**32,
        updated_at=big,
    )
    (signed,) = sign_proofs(PROOF_KEY, "k" * 32, [widest])
    command = PublishProofs(node_id=big, proofs=(signed,) * PROOFS_MAX)
    call = plane.encode(command, "i" * 512, request_id="r" * 128)
    assert len(call) < CONSISTENCY_PROFILE.payload_bytes_max


def test_a_group_s_tuple_comes_back_as_it_went() -> None:
    there = HELD.proven()
    assert proof_of(PartitionId(1), there, 1_000) == HELD
