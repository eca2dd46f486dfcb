"""Every message of a Raft group survives the way over the wire."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustor import wire as w
from clustor.log.types import (
    DurabilityMode,
    DurabilityModeEpoch,
    Entry,
    EntryKind,
    IoWriterMode,
    LogIndex,
    PartitionId,
    Term,
)
from clustor.raft import messages as raft
from clustor.raft.membership import Membership
from clustor.raft.types import ReplicaId, VoteAnnotation
from clustor.runtime.peers.raft_wire import from_packet, to_packet

PARTITION = PartitionId(7)
TARGET = ReplicaId(3)
WIDE = w.negotiate(w.local_handshake(), w.local_handshake()).dialect

numbers = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 2**32 - 1)
ids = st.frozensets(st.integers(1, 9).map(ReplicaId))


@st.composite
def entry_lists(draw: st.DrawFn, first: int | None = None) -> list[Entry]:
    start = draw(st.integers(1, 2**63)) if first is None else first
    payloads = draw(st.lists(st.binary(max_size=40), max_size=5))
    return [
        Entry(
            Term(draw(numbers)),
            LogIndex(start + nth),
            payload,
            draw(st.sampled_from(list(EntryKind))),
        )
        for nth, payload in enumerate(payloads)
    ]


@st.composite
def configurations(draw: st.DrawFn) -> Membership:
    voters, outgoing, learners, observers = (draw(ids) for _ in range(4))
    learners -= voters | outgoing
    observers -= voters | outgoing | learners
    next_learners = draw(ids) & outgoing
    return Membership(voters, outgoing, learners, next_learners, observers, draw(st.booleans()))


BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "durability_mode_epoch": epochs,
    "committed_epoch": epochs,
    "vote_granted": st.booleans(),
    "high_rtt": st.none() | st.booleans(),
    "vote_annotation": st.sampled_from(list(VoteAnnotation)),
    "transfer": st.booleans(),
    "ok": st.booleans(),
    "installing": st.booleans(),
    "rejoining": st.booleans(),
    "repairing": st.booleans(),
    "io_writer_mode": st.sampled_from(list(IoWriterMode)),
    "durability_mode": st.sampled_from(list(DurabilityMode)),
    "partition_id": st.just(PARTITION),
    "configuration": configurations(),
    "entries": entry_lists(),
    "prev_log_index": st.integers(0, 2**63),
}


@st.composite
def messages(draw: st.DrawFn, kind: type[Any]) -> Any:
    values = {
        field.name: draw(BY_NAME.get(field.name, numbers)) for field in dataclasses.fields(kind)
    }
    if kind is raft.AppendEntries:
        values["entries"] = draw(entry_lists(first=values["prev_log_index"] + 1))
    if kind is raft.AppendResponse and values["ok"]:
        values["conflict_term"] = values["conflict_index"] = 0  # an agreement names no conflict
    if kind is raft.PreVoteResponse:
        values["vote_annotation"] = VoteAnnotation.NONE  # C1 leaves no room for it
    return kind(**values)


@pytest.mark.parametrize("kind", get_args(raft.Message), ids=lambda kind: kind.__name__)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), epoch=epochs, dialect=st.sampled_from([w.BASELINE, WIDE]))
def test_every_message_comes_back_as_it_was_sent(
    kind: type[Any], data: st.DataObject, epoch: int, dialect: w.Dialect
) -> None:
    message = data.draw(messages(kind))
    packet = to_packet(PARTITION, TARGET, message, DurabilityModeEpoch(epoch))
    received = w.decode_packet(w.encode_packet(packet, dialect), dialect)
    assert received.route.partition_id == w.PartitionId(PARTITION)
    assert received.route.target_replica_id == w.ReplicaId(TARGET)
    assert from_packet(received) == message


def route() -> w.PacketRoute:
    return w.PacketRoute(
        w.PartitionId(7), w.ReplicaId(1), w.ReplicaId(3), w.Term(4), w.DurabilityModeEpoch(5)
    )


def append_of(*slices: bytes) -> w.Packet:
    nought = w.LogIndex(0)
    fields = (nought, w.Term(0), nought, nought, w.LeaseEpoch(0), 0, 0, 0, nought, nought)
    return w.Packet(route(), w.AppendEntriesRequest(*fields, entries=list(slices)))


def entry(index: int, kind: int = 0) -> bytes:
    return bytes([kind]) + (4).to_bytes(8, "little") + index.to_bytes(8, "little") + b"payload"


@pytest.mark.parametrize(
    ("slices", "error"),
    {
        "cut short": ((entry(1)[:16],), w.WireBodyTooShort),
        "an unknown kind": ((entry(1, kind=0x7F),), w.WireUnknownField),
        "a gap": ((entry(1), entry(3)), w.WireUnknownField),
        "not after prev_log_index": ((entry(2),), w.WireUnknownField),
    }.values(),
)
def test_entries_that_mean_nothing_are_refused(
    slices: tuple[bytes, ...], error: type[w.WireError]
) -> None:
    assert from_packet(append_of(entry(1), entry(2))) is not None
    with pytest.raises(error):
        from_packet(append_of(*slices))


def test_members_that_contradict_each_other_are_refused() -> None:
    both = [w.ReplicaId(1)]
    members = w.MembersBody(both, [], both, [], [], auto_leave=False)
    offer = w.OfferSnapshot(
        w.Term(1),
        w.LogIndex(1),
        members,
        w.LogIndex(1),
        w.RoutingEpoch(0),
        w.DurabilityMode.STRICT,
        w.DurabilityModeEpoch(0),
    )
    with pytest.raises(w.WireUnknownField):
        from_packet(w.Packet(route(), offer))


def test_what_is_no_message_of_a_group_is_none() -> None:
    assert from_packet(w.Packet(route(), w.TransferLeader(w.ReplicaId(2), 5))) is None
