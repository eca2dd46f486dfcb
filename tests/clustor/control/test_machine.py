"""The machine as a whole: idempotent, audited, confined, watchable, restorable."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustor.control import (
    RING_RECORDS_MAX,
    AclAction,
    AclEffect,
    AuditRecord,
    AuditRing,
    CompactHistory,
    ControlMachine,
    CreateTenant,
    Done,
    PlacePartition,
    QuotaPolicy,
    RefusalCode,
    Refused,
    SetAcls,
    TenantAclRule,
    TenantSpec,
    canonical,
    decode_answer,
    find,
    key_of,
    scan,
)
from clustor.control.audit import NOTHING
from clustor.kv import (
    CasRevision,
    Compact,
    Deleted,
    DeleteRange,
    ErrorCode,
    Events,
    EventsCompacted,
    Expire,
    Found,
    Get,
    Key,
    KvRefused,
    KvWritten,
    Put,
    StoreId,
    Txn,
    TxnDelete,
    TxnDeleteRange,
    TxnPut,
    decode_reply,
    encode_command,
)
from clustor.kv import Command as KvCommand
from clustor.replica import StateMachine
from tests.clustor.control.plane import OPERATOR, STRANGER, Plane, settled_plane
from tests.clustor.control.samples import SAMPLES

TENANT = CreateTenant(tenant_id="b", sni="b.example.com")


def trail(plane: Plane, ring: AuditRing = AuditRing.CALLS) -> list[AuditRecord]:
    return list(scan(plane.machine.kv, AuditRecord, ring.value))


def test_it_is_a_machine_that_a_replica_can_run() -> None:
    machine: StateMachine = ControlMachine(StoreId(b"control"))
    assert machine.apply_batch(1, []) == []


# Before there is a cluster.


@pytest.mark.parametrize("name", sorted(set(SAMPLES) - {"InitializeCluster"}))
def test_nothing_is_taken_before_the_cluster_has_a_name(name: str) -> None:
    plane = Plane(initialized=False)
    assert plane.refused(SAMPLES[name]) is RefusalCode.NOT_INITIALIZED


def test_a_cluster_is_initialized_once() -> None:
    plane = Plane()
    assert plane.refused(SAMPLES["InitializeCluster"]) is RefusalCode.ALREADY_INITIALIZED


# Idempotence.


def test_a_repeated_call_gets_the_same_bytes_and_changes_nothing() -> None:
    plane = settled_plane()
    call = plane.encode(TENANT, OPERATOR)
    first = plane.apply(call)
    before = plane.machine.digest()
    plane.now_ms += 5_000
    again = plane.encode(TENANT, OPERATOR, request_id=f"request-{plane._requests}")
    assert plane.apply(call) == first
    assert plane.apply(again) == first, "another leader's stamp does not make it another call"
    assert plane.machine.digest() == before


def test_a_repeated_refusal_is_the_same_refusal_even_when_it_would_succeed_by_now() -> None:
    plane = settled_plane()
    quotas = SAMPLES["SetQuotas"]
    early = plane.call(msgspec.structs.replace(quotas, tenant_id="b"), request_id="r")
    plane.done(TENANT)
    late = plane.call(msgspec.structs.replace(quotas, tenant_id="b"), request_id="r")
    assert isinstance(early, Refused)
    assert late == early


def test_a_request_id_is_one_callers_and_one_commands() -> None:
    plane = settled_plane()
    plane.call(TENANT, request_id="r")
    other = msgspec.structs.replace(TENANT, tenant_id="c", sni="c.example.com")
    reused = plane.call(other, request_id="r")
    assert isinstance(reused, Refused)
    assert reused.code is RefusalCode.REQUEST_ID_REUSED
    assert trail(plane)[-1].outcome == RefusalCode.REQUEST_ID_REUSED
    assert isinstance(plane.call(TENANT, request_id="r"), Done), "the first call keeps its id"
    stranger = plane.call(TENANT, by=STRANGER, request_id="r")
    assert isinstance(stranger, Refused)
    assert stranger.code is RefusalCode.UNAUTHORIZED, "nobody hears another's answer"


def test_a_repeated_publication_is_known_by_its_tuples_not_by_its_signatures() -> None:
    plane = settled_plane()
    publish = SAMPLES["PublishProofs"]
    first = plane.encode(publish, "spiffe://test/node/1", request_id="p")
    answer = plane.apply(first)
    resigned = msgspec.structs.replace(
        publish,
        proofs=tuple(
            msgspec.structs.replace(
                each, proof=msgspec.structs.replace(each.proof, updated_at=plane.now_ms + 7)
            )
            for each in publish.proofs  # type: ignore[attr-defined]
        ),
    )
    assert plane.apply(plane.encode(resigned, "spiffe://test/node/1", request_id="p")) == answer


# The audit trail.


def test_every_call_leaves_a_record_and_records_are_chained() -> None:
    plane = settled_plane()
    plane.done(TENANT)
    plane.refused(TENANT)
    records = trail(plane)
    done, refused = records[-2:]
    assert (done.kind, done.outcome, done.identity) == ("CreateTenant", "Done", OPERATOR)
    assert "tenant/b" in done.touched
    assert (refused.outcome, refused.touched) == ("AlreadyExists", ())
    previous = NOTHING
    for sequence, record in enumerate(records, 1):
        assert (record.sequence, record.previous) == (sequence, previous)
        previous = sha256(canonical(record)).digest()


def test_a_refused_call_changes_the_trail_alone() -> None:
    plane = settled_plane()
    revision = plane.machine.kv.revision
    plane.refused(TENANT, by=STRANGER)
    events = plane.machine.kv.events_since(revision, limit=10)
    assert isinstance(events, Events)
    assert [event.key[:6] for event in events.events] == [b"audit/"]


def test_rings_are_bounded_and_nodes_do_not_push_operators_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(RING_RECORDS_MAX, AuditRing.PUBLICATIONS, 3)
    plane = settled_plane()
    calls = trail(plane)
    for _ in range(5):
        plane.call(SAMPLES["ReportNode"], by="spiffe://test/node/1")
    assert trail(plane) == calls
    assert [record.sequence for record in trail(plane, AuditRing.PUBLICATIONS)] == [3, 4, 5]


def test_a_forgotten_request_id_is_forgotten_by_a_restored_machine_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(RING_RECORDS_MAX, AuditRing.CALLS, 12)
    plane = settled_plane()
    plane.call(TENANT, request_id="r")
    plane.call(msgspec.structs.replace(TENANT, sni="x.example.com"), request_id="r")
    for _ in range(11):
        plane.call(TENANT)
    twin = restored(plane)
    assert plane.call(TENANT, request_id="r") == twin.call(TENANT, request_id="r")
    assert plane.machine.digest() == twin.machine.digest()


# Bytes that are no calls.


@given(st.binary(max_size=64) | st.binary(max_size=64).map(lambda tail: b"{" + tail))
@settings(max_examples=300, deadline=None)
def test_no_bytes_make_it_raise(encoded: bytes) -> None:
    plane = Plane()
    plane.apply(encoded)


@pytest.mark.parametrize(
    "call",
    [
        b"{}",
        b'{"caller":{"identity":""},"request_id":"r","now_ms":1,"command":{}}',
        b'{"caller":{"identity":"x"},"request_id":"r/1","now_ms":1,"command":{}}',
        b'{"caller":{"identity":"x"},"request_id":"r\\n","now_ms":1,"command":{}}',
        b'{"caller":{"identity":"x"},"request_id":"r","now_ms":-1,"command":{}}',
        b'{"caller":{"identity":"\xff"},"request_id":"r","now_ms":1,"command":{}}',
        b"{" * 5_000,
    ],
)
def test_a_malformed_call_has_no_caller_to_audit(call: bytes) -> None:
    plane = Plane()
    before = plane.machine.digest()
    answer = decode_answer(plane.apply(call))
    assert isinstance(answer, Refused)
    assert answer.code is RefusalCode.MALFORMED
    assert plane.machine.digest() == before


def in_a_deep_stack(frames: int, action: Callable[[], bytes]) -> bytes:
    return action() if frames == 0 else in_a_deep_stack(frames - 1, action)


@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
@pytest.mark.parametrize("depth", [40, 200, 450, 900, 20_000])
def test_how_deep_is_too_deep_does_not_depend_on_the_stack(
    depth: int, brackets: tuple[bytes, bytes]
) -> None:
    plane = Plane()
    before = plane.machine.digest()
    deep = brackets[0] * depth + b"1" + brackets[1] * depth
    call = plane.encode(TENANT, OPERATOR).replace(b'"b"', deep)
    for frames in (0, 300, 600):
        answer = decode_answer(in_a_deep_stack(frames, lambda: plane.apply(call)))
        assert isinstance(answer, Refused)
        assert answer.code is RefusalCode.MALFORMED
    assert plane.machine.digest() == before


def test_brackets_in_words_are_no_depth() -> None:
    plane = settled_plane()
    rules = (
        TenantAclRule(effect=AclEffect.ALLOW, action=AclAction.ANY, filter='["\\' + "[{" * 200),
    )
    plane.done(SetAcls(tenant_id="a", expected_version=0, rules=rules))


def test_a_malformed_command_of_a_known_caller_is_audited() -> None:
    plane = Plane()
    encoded = plane.encode(TENANT, OPERATOR).replace(b'"CreateTenant"', b'"CreateTennant"')
    answer = decode_answer(plane.apply(encoded))
    assert isinstance(answer, Refused)
    assert answer.code is RefusalCode.MALFORMED
    assert trail(plane)[-1].kind == "Malformed"


# The key-value view.

K, V = Key(b"user/k"), b"v"
RESERVED = Key(b"tenant/a")
MAY = {
    "put": Put(K, V),
    "slipstream": Put(Key(b"slipstream/bucket/x/"), V),
    "cas": CasRevision(K, 0, V),
    "delete range": DeleteRange(b"user/a", b"user/z"),
    "all of a prefix": DeleteRange(b"user/", b"user0"),
    "transaction": Txn([], [TxnPut(K, V)]),
    "read ours": Get(RESERVED),
    "expire": Expire(5, 10),
}
MAY_NOT = {
    "put": Put(RESERVED, V),
    "put beside": Put(Key(b"use"), V),
    "cas": CasRevision(RESERVED, 0, V),
    "range beyond": DeleteRange(b"user/a", b"user1"),
    "range to the end": DeleteRange(b"user/a", None),
    "range from before": DeleteRange(b"u", b"user/z"),
    "transaction": Txn([], [TxnPut(K, V), TxnDelete(RESERVED)]),
    "range in transaction": Txn([], [TxnDeleteRange(b"", None)]),
    "compact": Compact(1),
}


@pytest.mark.parametrize("command", MAY.values(), ids=MAY.keys())
def test_plain_commands_work_in_their_own_prefix(command: KvCommand) -> None:
    plane = settled_plane()
    reply = decode_reply(plane.apply(encode_command(command)))
    assert not isinstance(reply, KvRefused), reply


@pytest.mark.parametrize("command", MAY_NOT.values(), ids=MAY_NOT.keys())
def test_plain_commands_never_touch_objects(command: KvCommand) -> None:
    plane = settled_plane()
    before = plane.machine.digest()
    reply = decode_reply(plane.apply(encode_command(command)))
    assert reply == KvRefused(ErrorCode.KEY_RESERVED)
    assert plane.machine.digest() == before


def test_objects_calls_and_plain_writes_share_one_history() -> None:
    plane = settled_plane()
    kv = plane.machine.kv
    start = kv.revision
    plane.apply(encode_command(Put(K, V)))
    answer = plane.call(TENANT)
    assert isinstance(answer, Done)
    events = kv.events_since(start, (b"tenant/", b"user/"), limit=10)
    assert isinstance(events, Events)
    assert [(event.key, event.mod_revision) for event in events.events] == [
        (b"user/k", start + 1),
        (b"tenant/b", answer.revision),
    ]
    assert events.through == answer.revision == kv.revision
    found = decode_reply(plane.apply(encode_command(Get(key_of(TenantSpec, "b")))))
    assert isinstance(found, Found)
    assert find(kv, QuotaPolicy, "b") == QuotaPolicy(tenant_id="b")


def test_compaction_is_told_honestly() -> None:
    plane = settled_plane()
    kv = plane.machine.kv
    start = kv.revision
    plane.done(TENANT)
    plane.done(CompactHistory(revision=kv.revision))
    assert kv.events_since(start, limit=1) == EventsCompacted(kv.compacted_revision, kv.revision)


# Snapshots.


def restored(plane: Plane) -> Plane:
    twin = Plane(ControlMachine(StoreId(b"other")), initialized=False)
    twin.machine.restore(plane.machine.snapshot())
    twin.now_ms, twin._requests = plane.now_ms, plane._requests
    return twin


def test_a_restored_machine_goes_on_as_the_one_that_wrote() -> None:
    plane = settled_plane()
    twin = restored(plane)
    assert twin.machine.digest() == plane.machine.digest()
    for name in sorted(SAMPLES):
        call = plane.encode(SAMPLES[name], OPERATOR)
        assert plane.apply(call) == twin.apply(call), name
    assert twin.machine.digest() == plane.machine.digest()


def test_indexes_follow_from_the_objects() -> None:
    plane = settled_plane()
    plane.place(2, 2, 3, 4)
    move = PlacePartition(
        partition_id=2,
        members=SAMPLES["PlacePartition"].members,  # type: ignore[attr-defined]
        load=20,
        expected_routing_epoch=2,
    )
    plane.done(move)
    ours, theirs = plane.machine._indexes, restored(plane).machine._indexes
    assert +ours.node_load == +theirs.node_load
    assert +ours.node_partitions == +theirs.node_partitions
    assert (ours.tenants, ours.partitions) == (theirs.tenants, theirs.partitions) == (1, 2)
    assert ours.node_load[1] == 30
    assert ours.node_load[4] == 20, "until the move is recorded both sides carry it"


def test_a_broken_snapshot_leaves_the_machine_as_it_was() -> None:
    plane = settled_plane()
    chunks = list(plane.machine.snapshot())
    before = plane.machine.digest()
    with pytest.raises(Exception, match="cut short"):
        plane.machine.restore([chunks[0][:-3]])
    assert plane.machine.digest() == before
    assert isinstance(decode_reply(plane.apply(encode_command(Put(K, V)))), KvWritten)
    reply = decode_reply(plane.apply(encode_command(DeleteRange(b"user/", b"user0"))))
    assert isinstance(reply, Deleted)


# Calls that were damaged on their way.


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_damaged_call_never_raises_and_replicas_agree_on_it(name: str) -> None:
    rng = Random(name)
    one, two = settled_plane(), settled_plane()
    call = one.encode(SAMPLES[name], OPERATOR)
    for number in range(60):
        damaged = bytearray(call.replace(b"request-", b"r%d-" % number))
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(1, len(damaged))] = rng.randrange(256)
        encoded = bytes(damaged[: rng.randrange(len(damaged) - 20, len(damaged) + 1)])
        assert one.apply(encoded) == two.apply(encoded)
    assert one.machine.digest() == two.machine.digest()
