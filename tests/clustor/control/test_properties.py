"""Whatever is called in whatever order: replicas agree, snapshots are whole, rules hold."""

from __future__ import annotations

from collections import Counter
from functools import cache
from hashlib import sha256
from random import Random

import msgspec
import pytest

from clustor.control import (
    AuditRecord,
    AuditRing,
    ControlMachine,
    Done,
    NodeSpec,
    Placement,
    ProofConflict,
    PublishedProof,
    RefusalCode,
    Refused,
    SniEntry,
    TenantSpec,
    canonical,
    decode_answer,
    find,
    proof_verifies,
    scan,
)
from clustor.control.calls import decode_call
from clustor.control.commands import decode_command
from clustor.kv import Events, Revision, StoreId
from tests.clustor.control.plane import Plane, settled_plane
from tests.clustor.control.walks import PLAIN, Walk

SEEDS = range(24)
STEPS = 80


@cache
def walked(seed: int) -> Walk:
    return Walk(seed, STEPS)


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_logs_give_equal_answers_and_digests_however_they_are_batched(seed: int) -> None:
    walk, twin = walked(seed), settled_plane()
    rng = Random(seed)
    answers: list[bytes] = []
    while len(answers) < len(walk.calls):
        batch = walk.calls[len(answers) :][: rng.randrange(1, 9)]
        answers += twin.machine.apply_batch(twin.machine.applied_index + 1, batch)
    assert answers == walk.answers
    assert twin.machine.digest() == walk.plane.machine.digest()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_snapshot_at_any_cut_in_any_pieces_goes_on_as_the_original(seed: int) -> None:
    walk, rng = walked(seed), Random(seed)
    cut, piece_bytes = rng.randrange(STEPS), rng.randrange(1, 5_000)
    plane = settled_plane()
    for call in walk.calls[:cut]:
        plane.apply(call)
    snapshot = plane.machine.snapshot()
    for call in walk.calls[cut:]:
        plane.apply(call)  # does not show in the snapshot, whose chunks are taken later
    whole = b"".join(snapshot)
    twin = Plane(ControlMachine(StoreId(b"another")), initialized=False)
    twin.machine.restore(whole[at : at + piece_bytes] for at in range(0, len(whole), piece_bytes))
    assert [twin.apply(call) for call in walk.calls[cut:]] == walk.answers[cut:]
    assert twin.machine.digest() == walk.plane.machine.digest()
    assert b"".join(twin.machine.snapshot()) == b"".join(plane.machine.snapshot())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_call_that_is_applied_again_is_answered_again_and_changes_nothing(seed: int) -> None:
    walk = Walk(seed, STEPS)
    for call, answer in zip(walk.calls, walk.answers, strict=True):
        if call in PLAIN:
            continue
        told = decode_answer(answer)
        if isinstance(told, Refused) and told.code is RefusalCode.REQUEST_ID_REUSED:
            continue  # that refusal is told, and audited, every time
        before = walk.plane.machine.digest()
        assert walk.plane.apply(call) == answer
        assert walk.plane.machine.digest() == before


@pytest.mark.parametrize("seed", SEEDS)
def test_proofs_only_grow_until_an_operator_clears_a_conflict(seed: int) -> None:
    walk, plane = walked(seed), settled_plane()
    newest: dict[int, tuple[tuple[int, ...], int]] = {}
    for call in walk.calls:
        plane.apply(call)
        kv = plane.machine.kv
        held = {each.proof.partition_id: each.proof for each in scan(kv, PublishedProof)}
        for partition in list(newest):
            if partition not in held:  # retired, or its conflict cleared
                del newest[partition]
        for partition, proof in held.items():
            rank = (proof.proven().rank(), proof.updated_at)
            assert rank >= newest.get(partition, rank)
            newest[partition] = rank


@pytest.mark.parametrize("seed", SEEDS)
def test_the_rules_between_objects_hold(seed: int) -> None:
    plane = walked(seed).plane
    kv = plane.machine.kv
    nodes = {node.node_id for node in scan(kv, NodeSpec)}
    tenants = {tenant.tenant_id: tenant for tenant in scan(kv, TenantSpec)}
    load: Counter[int] = Counter()
    placements = {each.partition_id: each for each in scan(kv, Placement)}
    for placement in placements.values():
        assert placement.tenant_id is None or placement.tenant_id in tenants
        assert placement.occupied <= nodes
        load.update(dict.fromkeys(placement.occupied, placement.load))
    indexes = plane.machine._indexes
    assert +indexes.node_load == +load
    assert (indexes.tenants, indexes.partitions) == (len(tenants), len(placements))
    hosts = {entry.sni: entry.tenant_id for entry in scan(kv, SniEntry)}
    assert hosts == {tenant.sni: tenant.tenant_id for tenant in tenants.values()}
    for published in scan(kv, PublishedProof):
        assert published.proof.partition_id in placements
        assert proof_verifies(kv, published.proof, published.controlplane_signature)
    for conflict in scan(kv, ProofConflict):
        assert find(kv, PublishedProof, conflict.partition_id) is not None


@pytest.mark.parametrize("seed", SEEDS)
def test_every_call_but_a_repeated_one_is_in_the_trail_and_the_trail_is_chained(seed: int) -> None:
    walk, plane = walked(seed), settled_plane()
    expected = len(list(scan(plane.machine.kv, AuditRecord)))
    first: dict[tuple[str, str], bytes] = {}
    for encoded in walk.calls:
        if encoded in PLAIN:
            continue
        call = decode_call(encoded)
        essence = canonical(decode_command(call.command).essence())
        request = (call.caller.identity, call.request_id)
        expected += request not in first or first[request] != essence
        first.setdefault(request, essence)
    records = list(scan(walk.plane.machine.kv, AuditRecord))
    assert len(records) == expected
    for ring in AuditRing:
        previous = bytes(32)
        for record in (each for each in records if each.ring is ring):
            assert record.previous == previous
            previous = sha256(canonical(record)).digest()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_watch_leads_to_the_same_store(seed: int) -> None:
    walk, plane, rng = walked(seed), settled_plane(), Random(seed)
    kv = plane.machine.kv
    copy, cursor = (
        {record.key: record for record in kv.range(b"", None, 10_000).records},
        kv.revision,
    )
    for call in walk.calls:
        plane.apply(call)
        if rng.random() < 0.3:
            found = kv.events_since(Revision(cursor), limit=rng.randrange(1, 8))
            if isinstance(found, Events):
                for event in found.events:
                    copy[event.key] = event
                cursor = found.through
            else:  # compacted: a listing starts it anew
                copy = {record.key: record for record in kv.range(b"", None, 10_000).records}
                cursor = kv.revision
    found = kv.events_since(Revision(cursor), limit=10_000)
    if isinstance(found, Events):
        copy |= {event.key: event for event in found.events}
        standing = {record.key: record for record in kv.range(b"", None, 10_000).records}
        assert {key: each for key, each in copy.items() if not each.is_delete} == standing


def test_the_walks_reach_what_they_are_for() -> None:
    """A walk whose calls are all refused shows nothing."""
    done: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for seed in SEEDS:
        for call, answer in zip(walked(seed).calls, walked(seed).answers, strict=True):
            if call in PLAIN:
                continue
            kind = msgspec.json.decode(decode_call(call).command)["kind"]
            told = decode_answer(answer)
            (done if isinstance(told, Done) else refused)[kind] += 1
    assert len(done) >= 28, sorted(done)
    assert len(refused) >= 28, sorted(refused)
    for kind in ("PlacePartition", "PublishProofs", "SetRoutingMap", "RecordMembership"):
        assert done[kind] >= 5, (kind, done)
