"""Raft's messages as packets of the wire, and back.

The route of a packet carries the term and the durability mode epoch. For the four vote messages
the term is the one that the vote is about. What the wire says about an entry is its kind, its
term, its index and its payload; the connection beneath authenticates it, so no checksum is added.
The log's words (terms, indexes, epochs, modes) are the wire's own and pass as they are.

A PreVoteResponse has its published bytes (C1), in which there is no room for the annotation: the
same replica says it in its VoteResponse.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final, assert_never

from clustor import wire as w
from clustor.log import types as log
from clustor.raft import messages as raft
from clustor.raft import types as words
from clustor.raft.membership import Members, Membership

_ENTRY: Final = struct.Struct("<BQQ")
_KINDS: Final = {int(kind): kind for kind in log.EntryKind}
_NO_ANNOTATION: Final = words.VoteAnnotation.NONE
_BARRED: Final = words.VoteAnnotation.STRICT_FALLBACK_BARRED


class EncodedEntries:
    """The entries of the last AppendEntries: its followers mostly get the same, in one turn."""

    __slots__ = ("_first", "_last", "_slices")

    def __init__(self) -> None:
        self._first: log.Entry | None = None
        self._last: log.Entry | None = None
        self._slices: list[w.Buffer] = []

    def of(self, entries: list[log.Entry]) -> list[w.Buffer]:
        """Return the slices of entries; the very same objects at both ends are the same run."""
        if not entries:
            return []
        if entries[0] is not self._first or entries[-1] is not self._last:
            self._first, self._last = entries[0], entries[-1]
            self._slices = encode_entries(entries)
        return self._slices


def to_packet(
    partition: log.PartitionId,
    target: words.ReplicaId,
    message: raft.Message,
    epoch: log.DurabilityModeEpoch,
    encoded: EncodedEntries | None = None,
) -> w.Packet:
    """Address a message. `epoch` is the sender's, for messages that do not carry one.

    `encoded` lets messages of one turn share what they have in common.
    """
    sender, term = w.ReplicaId(message.sender), message.term
    if isinstance(message, raft.AppendEntries):
        slices = encode_entries(message.entries) if encoded is None else encoded.of(message.entries)
        carried = message.durability_mode_epoch
        route = w.PacketRoute(partition, sender, w.ReplicaId(target), term, carried)
        return w.Packet(route, _append_to_wire(message, slices))
    carried = getattr(message, "durability_mode_epoch", epoch)
    route = w.PacketRoute(partition, sender, w.ReplicaId(target), term, carried)
    return w.Packet(route, _to_wire(message))


def from_packet(packet: w.Packet) -> raft.Message | None:
    """Return the message of a packet, or None if it is none of a Raft group's.

    Raises WireUnknownField where an entry has no meaning.
    """
    read = _READERS.get(type(packet.message))
    message: raft.Message | None = None if read is None else read(packet.route, packet.message)
    return message


def encode_entries(entries: Iterable[log.Entry]) -> list[w.Buffer]:
    """Return the slices in which entries travel."""
    pack = _ENTRY.pack
    return [pack(entry.kind, entry.term, entry.index) + entry.payload for entry in entries]


def decode_entries(slices: Iterable[w.Buffer]) -> list[log.Entry]:
    """Return the entries of `slices`; their indexes must follow each other."""
    entries: list[log.Entry] = []
    expected: int | None = None
    for piece in slices:
        if len(piece) < _ENTRY.size:
            raise w.WireBodyTooShort("an entry is cut short", length=len(piece))
        kind, term, index = _ENTRY.unpack_from(piece)
        if kind not in _KINDS:
            raise w.WireUnknownField("unknown entry kind", kind=kind)
        if expected is not None and index != expected:
            raise w.WireUnknownField("entries do not follow each other", index=index)
        expected = index + 1
        payload = bytes(piece[_ENTRY.size :])
        entries.append(log.Entry(log.Term(term), log.LogIndex(index), payload, _KINDS[kind]))
    return entries


def _to_wire(message: raft.Message) -> w.RaftMessage:
    match message:
        case raft.AppendEntries():
            return _append_to_wire(message, encode_entries(message.entries))
        case raft.AppendResponse():
            return _append_response_to_wire(message)
        case raft.DurabilityAck():
            kind = w.RepairingAck if message.repairing else w.DurabilityAckBody
            return kind(
                message.partition_id,
                w.ReplicaId(message.sender),
                message.last_fsynced_index,
                message.segment_seq,
                message.io_writer_mode,
            )
        case raft.PreVoteRequest():
            return w.PreVoteRequestBody(
                message.term,
                message.last_log_index,
                message.last_log_term,
            )
        case raft.PreVoteResponse():
            return w.PreVoteResponseBody(message.term, message.vote_granted, message.high_rtt)
        case raft.VoteRequest():
            return w.RequestVoteRequest(
                message.term,
                message.last_log_index,
                message.last_log_term,
                message.transfer,
            )
        case raft.VoteResponse():
            barred = message.vote_annotation is _BARRED
            annotation = w.VoteAnnotationCode.STRICT_FALLBACK_BARRED if barred else None
            return w.RequestVoteResponse(message.term, message.vote_granted, annotation)
        case raft.InstallSnapshot():
            return _offer_to_wire(message)
        case raft.SnapshotResponse():
            return w.OfferSnapshotResponse(message.base_index, message.ok)
        case raft.TimeoutNow():
            return w.TimeoutNowBody()
        case raft.ModeConflict():
            return w.EpochConflict()
        case raft.RepairRequest():
            return w.RepairRequestBody(message.first_index, message.last_index)
        case raft.RepairEntries():
            return w.RepairEntriesBody(encode_entries(message.entries))
        case _:
            assert_never(message)


def _append_to_wire(message: raft.AppendEntries, entries: list[w.Buffer]) -> w.AppendEntriesRequest:
    return w.AppendEntriesRequest(
        message.prev_log_index,
        message.prev_log_term,
        message.commit_index,
        message.wal_committed_index,
        w.LeaseEpoch(message.lease_epoch),
        message.read_seq,
        message.sent_ms,
        message.rtt_ms,
        message.quorum_applied_index,
        message.quorum_sm_durable_index,
        entries,
    )


def _append_response_to_wire(message: raft.AppendResponse) -> w.AppendEntriesResponse:
    return w.AppendEntriesResponse(
        message.ok,
        message.match_index,
        message.prev_log_index,
        message.read_seq,
        message.sent_ms,
        message.applied_index,
        message.sm_durable_index,
        message.io_writer_mode,
        message.installing,
        message.rejoining,
        None if message.ok else message.conflict_index,
        None if message.ok else message.conflict_term,
    )


def _offer_to_wire(message: raft.InstallSnapshot) -> w.OfferSnapshot:
    config = message.configuration
    members = w.MembersBody(
        _ids(config.voters),
        _ids(config.outgoing),
        _ids(config.learners),
        _ids(config.learners_next),
        _ids(config.observers),
        config.auto_leave,
    )
    return w.OfferSnapshot(
        w.Term(message.base_term),
        w.LogIndex(message.base_index),
        members,
        w.LogIndex(message.configuration_index),
        w.RoutingEpoch(message.routing_epoch),
        w.DurabilityMode(message.durability_mode),
        w.DurabilityModeEpoch(message.committed_epoch),
    )


def _ids(members: Members) -> list[w.ReplicaId]:
    return [w.ReplicaId(member) for member in sorted(members)]


def _read_append(route: w.PacketRoute, body: w.AppendEntriesRequest) -> raft.AppendEntries:
    entries = decode_entries(body.entries)
    if entries and entries[0].index != body.prev_log_index + 1:
        raise w.WireUnknownField("entries do not follow prev_log_index", index=entries[0].index)
    return raft.AppendEntries(
        route.term,
        words.ReplicaId(route.source_replica_id),
        body.prev_log_term,
        body.prev_log_index,
        entries,
        body.raft_commit_index,
        body.wal_committed_index,
        route.durability_mode_epoch,
        words.ReadSeq(body.round_number),
        body.sent_ms,
        body.rtt_ms,
        words.LeaseEpoch(body.lease_epoch),
        body.quorum_applied_index,
        body.quorum_sm_durable_index,
    )


def _read_append_response(
    route: w.PacketRoute, body: w.AppendEntriesResponse
) -> raft.AppendResponse:
    return raft.AppendResponse(
        route.term,
        words.ReplicaId(route.source_replica_id),
        body.success,
        body.last_log_index,
        body.prev_log_index,
        body.conflict_term or words.NO_TERM,
        body.conflict_index or words.NO_INDEX,
        words.ReadSeq(body.round_number),
        body.sent_ms,
        body.applied_index,
        body.sm_durable_index,
        body.io_writer_mode,
        body.installing,
        body.rejoining,
    )


def _read_ack(route: w.PacketRoute, body: w.DurabilityAckBody) -> raft.DurabilityAck:
    return raft.DurabilityAck(
        route.term,
        body.partition_id,
        words.ReplicaId(body.replica_id),
        body.last_fsynced_index,
        body.segment_seq,
        body.io_writer_mode,
        repairing=isinstance(body, w.RepairingAck),
    )


def _read_pre_vote_request(route: w.PacketRoute, body: w.PreVoteRequestBody) -> raft.PreVoteRequest:
    return raft.PreVoteRequest(
        log.Term(body.term),
        words.ReplicaId(route.source_replica_id),
        log.Term(body.last_log_term),
        log.LogIndex(body.last_log_index),
        log.DurabilityModeEpoch(route.durability_mode_epoch),
    )


def _read_pre_vote_response(
    route: w.PacketRoute, body: w.PreVoteResponseBody
) -> raft.PreVoteResponse:
    sender = words.ReplicaId(route.source_replica_id)
    return raft.PreVoteResponse(log.Term(body.term), sender, body.vote_granted, body.high_rtt)


def _read_vote_request(route: w.PacketRoute, body: w.RequestVoteRequest) -> raft.VoteRequest:
    return raft.VoteRequest(
        log.Term(body.term),
        words.ReplicaId(route.source_replica_id),
        log.Term(body.last_log_term),
        log.LogIndex(body.last_log_index),
        log.DurabilityModeEpoch(route.durability_mode_epoch),
        body.leadership_transfer,
    )


def _read_vote_response(route: w.PacketRoute, body: w.RequestVoteResponse) -> raft.VoteResponse:
    annotation = _NO_ANNOTATION if body.vote_annotation is None else _BARRED
    sender = words.ReplicaId(route.source_replica_id)
    return raft.VoteResponse(log.Term(body.term), sender, body.vote_granted, annotation)


def _read_offer(route: w.PacketRoute, body: w.OfferSnapshot) -> raft.InstallSnapshot:
    return raft.InstallSnapshot(
        log.Term(route.term),
        words.ReplicaId(route.source_replica_id),
        log.Term(body.base_term),
        log.LogIndex(body.base_index),
        _configuration(body.members),
        log.LogIndex(body.members_index),
        words.RoutingEpoch(body.routing_epoch),
        log.DurabilityMode(body.durability_mode),
        log.DurabilityModeEpoch(body.committed_epoch),
        log.DurabilityModeEpoch(route.durability_mode_epoch),
    )


def _configuration(members: w.MembersBody) -> Membership:
    try:
        return Membership(
            _set(members.voters),
            _set(members.outgoing),
            _set(members.learners),
            _set(members.learners_next),
            _set(members.observers),
            members.auto_leave,
        )
    except AssertionError:  # Configuration's own rules, here broken by a peer and not by us
        raise w.WireUnknownField("members that contradict each other") from None


def _set(ids: Iterable[w.ReplicaId]) -> Members:
    return frozenset(words.ReplicaId(each) for each in ids)


def _read_offer_response(
    route: w.PacketRoute, body: w.OfferSnapshotResponse
) -> raft.SnapshotResponse:
    sender = words.ReplicaId(route.source_replica_id)
    base = log.LogIndex(body.base_index)
    return raft.SnapshotResponse(log.Term(route.term), sender, base, body.installed)


def _read_timeout_now(route: w.PacketRoute, _body: w.TimeoutNowBody) -> raft.TimeoutNow:
    return raft.TimeoutNow(log.Term(route.term), words.ReplicaId(route.source_replica_id))


def _read_conflict(route: w.PacketRoute, _body: w.EpochConflict) -> raft.ModeConflict:
    epoch = log.DurabilityModeEpoch(route.durability_mode_epoch)
    sender = words.ReplicaId(route.source_replica_id)
    return raft.ModeConflict(log.Term(route.term), sender, epoch)


def _read_repair_request(route: w.PacketRoute, body: w.RepairRequestBody) -> raft.RepairRequest:
    sender = words.ReplicaId(route.source_replica_id)
    first, last = log.LogIndex(body.first_index), log.LogIndex(body.last_index)
    return raft.RepairRequest(log.Term(route.term), sender, first, last)


def _read_repair_entries(route: w.PacketRoute, body: w.RepairEntriesBody) -> raft.RepairEntries:
    sender = words.ReplicaId(route.source_replica_id)
    return raft.RepairEntries(log.Term(route.term), sender, decode_entries(body.entries))


_READERS: Final[dict[type[Any], Any]] = {
    w.AppendEntriesRequest: _read_append,
    w.AppendEntriesResponse: _read_append_response,
    w.DurabilityAckBody: _read_ack,
    w.RepairingAck: _read_ack,
    w.PreVoteRequestBody: _read_pre_vote_request,
    w.PreVoteResponseBody: _read_pre_vote_response,
    w.RequestVoteRequest: _read_vote_request,
    w.RequestVoteResponse: _read_vote_response,
    w.OfferSnapshot: _read_offer,
    w.OfferSnapshotResponse: _read_offer_response,
    w.TimeoutNowBody: _read_timeout_now,
    w.EpochConflict: _read_conflict,
    w.RepairRequestBody: _read_repair_request,
    w.RepairEntriesBody: _read_repair_entries,
}
