"""Publication of proofs by ruling C7: on demand, batched, refreshed before their end."""

from __future__ import annotations

import pytest

from clustor.control import ProofBatch, ProofPublisher, ProofVerdict, find, signed_command
from clustor.control.proofs import PROOFS_MAX, PublishedProof
from clustor.log.types import PartitionId
from clustor.raft.profiles import ControlPlaneNumbers
from clustor.raft.types import DurabilityTuple
from tests.clustor.control.plane import PROOF_KEY, proof, settled_plane

NUMBERS = ControlPlaneNumbers(durability_proof_ttl_ms=100_000)
P1, P2 = PartitionId(1), PartitionId(2)


def tuple_at(index: int) -> DurabilityTuple:
    return proof(1, index).proven()


@pytest.fixture
def publisher() -> ProofPublisher:
    return ProofPublisher(1, "life", NUMBERS)


def taken(publisher: ProofPublisher, now_ms: int) -> ProofBatch:
    batch = publisher.take(now_ms)
    assert batch is not None
    return batch


def accept(publisher: ProofPublisher, batch: ProofBatch, now_ms: int) -> None:
    verdicts = {partition: ProofVerdict.PUBLISHED for partition, _ in batch.wishes}
    publisher.answered(batch.request_id, verdicts, now_ms)


def test_a_wish_goes_out_at_once(publisher: ProofPublisher) -> None:
    assert publisher.take(0) is None
    publisher.wish(P1, tuple_at(1))
    batch = taken(publisher, 0)
    assert (batch.node_id, batch.wishes) == (1, ((P1, tuple_at(1)),))


def test_wishes_that_come_while_one_is_under_way_make_one_batch(publisher: ProofPublisher) -> None:
    publisher.wish(P1, tuple_at(1))
    first = taken(publisher, 0)
    publisher.wish(P1, tuple_at(2))
    publisher.wish(P2, tuple_at(7))
    publisher.wish(P1, tuple_at(3))
    assert publisher.take(999) is None
    accept(publisher, first, 999)
    second = taken(publisher, 999)
    assert dict(second.wishes) == {P1: tuple_at(3), P2: tuple_at(7)}
    assert second.request_id != first.request_id


def test_a_silent_control_plane_costs_one_batch_a_second(publisher: ProofPublisher) -> None:
    publisher.wish(P1, tuple_at(1))
    first = taken(publisher, 0)
    assert publisher.next_deadline_ms() == 1_000
    publisher.wish(P1, tuple_at(2))
    second = taken(publisher, 1_000)
    accept(publisher, first, 1_001)
    assert publisher.take(1_001) is None, "an answer to what was given up frees nothing"
    publisher.failed(second.request_id)
    assert publisher.take(1_002) is None, "the group will wish again"
    publisher.wish(P1, tuple_at(3))
    assert taken(publisher, 1_003).wishes == ((P1, tuple_at(3)),)


def test_a_group_at_rest_is_refreshed_at_half_of_its_proof_s_life(
    publisher: ProofPublisher,
) -> None:
    publisher.wish(P1, tuple_at(1))
    accept(publisher, taken(publisher, 0), 10)
    assert publisher.next_deadline_ms() == 50_010
    assert publisher.take(50_009) is None
    batch = taken(publisher, 50_010)
    assert batch.wishes == ((P1, tuple_at(1)),)
    publisher.failed(batch.request_id)
    assert publisher.take(60_009) is None
    again = taken(publisher, 60_010)
    publisher.answered(again.request_id, {P1: ProofVerdict.REFRESHED}, 60_010)
    assert publisher.next_deadline_ms() == 110_010


@pytest.mark.parametrize("ends", ["forgotten", "superseded"])
def test_what_another_node_leads_is_not_refreshed(publisher: ProofPublisher, ends: str) -> None:
    publisher.wish(P1, tuple_at(1))
    accept(publisher, taken(publisher, 0), 0)
    if ends == "forgotten":
        publisher.forget(P1)
    else:
        publisher.wish(P1, tuple_at(2))
        batch = taken(publisher, 1)
        publisher.answered(batch.request_id, {P1: ProofVerdict.SUPERSEDED}, 1)
    assert publisher.take(1_000_000) is None
    assert publisher.next_deadline_ms() is None


def test_a_node_of_very_many_groups_needs_more_than_one_batch(publisher: ProofPublisher) -> None:
    for number in range(PROOFS_MAX + 5):
        publisher.wish(PartitionId(number), tuple_at(1))
    first = taken(publisher, 0)
    assert len(first.wishes) == PROOFS_MAX
    accept(publisher, first, 1)
    assert len(taken(publisher, 1).wishes) == 5


def test_request_ids_of_two_lives_differ() -> None:
    ids = set()
    for life in ("one", "two"):
        publisher = ProofPublisher(1, life, NUMBERS)
        publisher.wish(P1, tuple_at(1))
        ids.add(taken(publisher, 0).request_id)
    assert len(ids) == 2


def test_what_the_leader_signs_the_machine_publishes(publisher: ProofPublisher) -> None:
    plane = settled_plane()
    publisher.wish(P1, tuple_at(9))
    batch = taken(publisher, 0)
    command = signed_command(batch, PROOF_KEY, "p1", plane.now_ms)
    assert plane.verdicts(command) == {"1": "Published"}
    held = find(plane.machine.kv, PublishedProof, 1)
    assert held is not None
    assert (held.proof.proven(), held.proof.updated_at) == (tuple_at(9), plane.now_ms)
