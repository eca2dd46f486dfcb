"""A broker's state as bytes, and back: the same bytes for the same state.

One MessagePack array behind a name and a version. What follows from other things (routes, levels
of interest, deadlines, what is full) is worked out anew.
"""

from __future__ import annotations

from typing import Final

import msgspec

from quantum.broker.channels import Outbox
from quantum.broker.commands import SubscriptionSpec, WillSpec
from quantum.broker.errors import SnapshotUnusable
from quantum.broker.items import Item, decode_item, encode_item
from quantum.broker.message import Message, decode_record
from quantum.broker.outbound import Delivery, Outbound
from quantum.broker.session import Session, new_outbound
from quantum.broker.settings import BrokerSettings
from quantum.broker.shares import Member, ShareGroup
from quantum.broker.state import State
from quantum.broker.types import ClientId, Sequence, SessionEpoch

_NAME: Final = "quantum.broker"
_VERSION: Final = 1
CHUNK_BYTES: Final = 1 << 20


class _Delivery(msgspec.Struct, array_like=True):
    record: bytes
    qos: int
    retain: bool
    identifiers: tuple[int, ...]
    share: bytes
    filter: bytes
    packet_id: int
    state: int


class _Session(msgspec.Struct, array_like=True):
    client_id: bytes
    epoch: int
    expiry_seconds: int
    attachment: int
    connected: bool
    disconnected_at_ms: int
    subscriptions: list[tuple[bytes, SubscriptionSpec]]
    received: list[tuple[int, int, int]]
    will: WillSpec | None
    will_due_ms: int
    window: int
    next_id: int
    in_flight: list[_Delivery]
    queued: list[_Delivery]


class _Group(msgspec.Struct, array_like=True):
    name: bytes
    filter: bytes
    turn: int
    members: list[tuple[int, bytes, int, int, int, bool]]


class _State(msgspec.Struct, array_like=True):
    name: str
    version: int
    prg: int
    applied_index: int
    now_ms: int
    epoch: int
    dropped: int
    sessions: list[_Session]
    groups: list[_Group]
    retained: list[bytes]
    outboxes: list[tuple[int, int, list[bytes]]]
    counted: list[tuple[int, int]]
    forwarded: list[tuple[int, int, int]]
    told: list[tuple[bytes, int]]
    full: list[bytes]
    remote: list[tuple[bytes, int, int]]  # other partitions' interests
    deadlines: list[tuple[int, bytes]]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_State)


def state_chunks(state: State) -> list[bytes]:
    """Return the state of this moment in pieces."""
    whole = _encoder.encode(_frozen(state))
    return [whole[at : at + CHUNK_BYTES] for at in range(0, len(whole), CHUNK_BYTES)]


def _frozen(state: State) -> _State:
    channels = state.channels
    return _State(
        name=_NAME,
        version=_VERSION,
        prg=state.settings.prg,
        applied_index=state.applied_index,
        now_ms=state.now_ms,
        epoch=state.epoch,
        dropped=state.dropped,
        sessions=[_frozen_session(session) for session in state.sessions.values()],
        groups=[_frozen_group(group) for group in state.groups.values()],
        retained=[message.record for _, message in state.retained.items()],
        outboxes=[
            (prg, outbox.acked_through, [encode_item(item) for item in outbox.items])
            for prg, outbox in channels.outboxes().items()
        ],
        counted=list(channels.counted.items()),
        forwarded=[(prg, *place) for prg, place in channels.forwarded.items()],
        told=list(state.told.items()),
        full=sorted(state.routes.full),
        remote=sorted(
            (topic_filter, subscriber, wish)
            for topic_filter, subscriber, wish in state.routes.trie.items()
            if isinstance(subscriber, int) and isinstance(wish, int)
        ),
        deadlines=sorted(state.deadlines),
    )


def _frozen_session(session: Session) -> _Session:
    outbound = session.outbound
    return _Session(
        client_id=session.client_id,
        epoch=session.epoch,
        expiry_seconds=session.expiry_seconds,
        attachment=session.attachment,
        connected=session.connected,
        disconnected_at_ms=session.disconnected_at_ms,
        subscriptions=list(session.subscriptions.items()),
        received=[(packet_id, *place) for packet_id, place in session.received.items()],
        will=session.will,
        will_due_ms=session.will_due_ms,
        window=outbound.window,
        next_id=outbound.next_id,
        in_flight=[_frozen_delivery(each) for each in outbound.in_flight.values()],
        queued=[_frozen_delivery(each) for each in outbound.queue],
    )


def _frozen_delivery(delivery: Delivery) -> _Delivery:
    return _Delivery(
        delivery.message.record,
        delivery.qos,
        delivery.retain,
        delivery.identifiers,
        delivery.share,
        delivery.filter,
        delivery.packet_id,
        delivery.state,
    )


def _frozen_group(group: ShareGroup) -> _Group:
    members = [
        (each.prg, each.client_id, each.epoch, each.qos, each.identifier, each.online)
        for each in group.members.values()
    ]
    return _Group(group.name, group.filter, group.turn, members)


def restore_state(settings: BrokerSettings, data: bytes) -> State:
    """Make the state that a snapshot says. Raises SnapshotUnusable."""
    try:
        frozen = _decoder.decode(data)
        if (frozen.name, frozen.version) != (_NAME, _VERSION):
            raise SnapshotUnusable("not a snapshot of this version", version=frozen.version)
        if frozen.prg != settings.prg:
            raise SnapshotUnusable("another partition's snapshot", prg=frozen.prg)
        return _thawed(settings, frozen)
    except (msgspec.DecodeError, ValueError) as error:
        raise SnapshotUnusable("cannot read the snapshot", cause=str(error)) from error


def _thawed(settings: BrokerSettings, frozen: _State) -> State:
    state = State(settings)
    state.applied_index, state.now_ms = frozen.applied_index, frozen.now_ms
    state.epoch, state.dropped = frozen.epoch, frozen.dropped
    for each in frozen.sessions:
        _thaw_session(state, each)
    for topic_filter, prg, level in frozen.remote:
        state.routes.trie.add(topic_filter, prg, level)
    for group in frozen.groups:
        _thaw_group(state, group)
    for record in frozen.retained:
        message, _ = decode_record(record)
        state.retained.put(message.topic, message)
    for prg, acked_through, items in frozen.outboxes:
        _thaw_outbox(state.channels.to(prg), acked_through, [decode_item(each) for each in items])
    state.channels.counted.update(frozen.counted)
    state.channels.forwarded.update((prg, (term, number)) for prg, term, number in frozen.forwarded)
    state.told.update(frozen.told)
    state.routes.full.update(frozen.full)
    state.deadlines = list(frozen.deadlines)
    return state


def _thaw_session(state: State, frozen: _Session) -> None:
    session = Session(
        ClientId(frozen.client_id),
        SessionEpoch(frozen.epoch),
        frozen.expiry_seconds,
        _thawed_outbound(frozen),
        frozen.attachment,
        frozen.connected,
        frozen.disconnected_at_ms,
        dict(frozen.subscriptions),
        {packet_id: (prg, place) for packet_id, prg, place in frozen.received},
        frozen.will,
        frozen.will_due_ms,
        sum(1 for _, spec in frozen.subscriptions if spec.share),
    )
    state.sessions[session.client_id] = session
    for spec in session.subscriptions.values():
        if not spec.share:
            state.routes.trie.add(spec.filter, session.client_id, spec)
            state.filters.setdefault(spec.filter, {})[session.client_id] = None


def _thawed_outbound(frozen: _Session) -> Outbound:
    outbound = new_outbound(frozen.window)
    outbound.restore(
        [_thawed_delivery(each) for each in frozen.in_flight],
        [_thawed_delivery(each) for each in frozen.queued],
        frozen.next_id,
    )
    return outbound


def _thawed_delivery(frozen: _Delivery) -> Delivery:
    message: Message = decode_record(frozen.record)[0]
    delivery = Delivery(
        message, frozen.qos, frozen.retain, frozen.identifiers, frozen.share, frozen.filter
    )
    delivery.packet_id, delivery.state = frozen.packet_id, frozen.state
    return delivery


def _thaw_group(state: State, frozen: _Group) -> None:
    group = ShareGroup(frozen.name, frozen.filter, turn=frozen.turn)
    for prg, client_id, epoch, qos, identifier, online in frozen.members:
        group.join(Member(prg, client_id, epoch, qos, identifier, online))
    key = (frozen.name, frozen.filter)
    state.groups[key] = group
    state.routes.trie.add(frozen.filter, key, None)


def _thaw_outbox(outbox: Outbox, acked_through: int, items: list[Item]) -> None:
    outbox.acked_through = Sequence(acked_through)
    outbox.items.extend(items)
