"""One partition on a desk: say a command, see its reply and its effects.

Beside the leader a follower applies the same log, a third replica begins anew from the leader's
snapshot before every command, and a fourth hears of nothing but deltas: all four must stay equal,
whatever a test does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from clustor.streams.changes import StreamChange
from quantum.broker import (
    OWN_ORIGIN,
    Acknowledge,
    Attach,
    Attached,
    Broker,
    BrokerSettings,
    ChannelAcked,
    ChannelItems,
    Command,
    Detach,
    Effect,
    Elapse,
    FanOut,
    Message,
    PublishOnce,
    Release,
    Send,
    SendVolatile,
    Subscribe,
    SubscribeReply,
    SubscriptionSpec,
    Unsubscribe,
    WillSpec,
    decode_refusals,
    encode_command,
    encode_publishes,
    encode_record,
)
from quantum.broker.items import Item, encode_item
from quantum.broker.message import RETAIN
from quantum.broker.session import Session

HERE, THERE = 0, 1


def owner(topic: bytes, count: int) -> int:
    """Topics that begin with `far` belong to the other partition; larger rings have more places."""
    if count > 2 and topic.startswith(b"new"):
        return count - 1
    return THERE if topic.startswith(b"far") else HERE


SETTINGS = BrokerSettings(prg=HERE, prg_count=2, topic_partition=owner, session_partition=owner)


class Desk:
    """Times are seconds here; `log` is what was said so far."""

    def __init__(self, **settings: int) -> None:
        self.settings = replace(SETTINGS, **settings)  # type: ignore[arg-type]
        self.leader, self.follower, self.chained = (self._broker() for _ in range(3))
        self.appended: list[StreamChange] = []
        """What became of streams, from the first command on."""
        self.leader.collect(wanted=True)
        self.leader.mark(0)
        self.now_ms = 1_000
        self.effects: list[Effect] = []
        self._sequences = 0

    def _broker(self) -> Broker:
        return Broker(self.settings, keeps_streams=True)

    def apply(self, *commands: bytes) -> list[bytes]:
        index = self.leader.applied_index + 1
        restored = self._broker()
        restored.restore(self.leader.snapshot())
        replies = self.leader.apply_batch(index, commands)
        changes = self.leader.take_stream_changes()
        self.appended += changes
        for replica in (self.follower, restored):
            assert replica.apply_batch(index, commands) == replies
            assert replica.digest() == self.leader.digest()
            assert replica.take_stream_changes() == changes
        self._go_on(index)
        self.effects = self.leader.take_effects(index)
        return replies

    def _go_on(self, index: int) -> None:
        delta = self.leader.delta(index - 1)
        if delta is None:  # a change of the ring, or a test that marks on its own
            self.chained.restore(self.leader.snapshot())
        else:
            self.chained.restore_delta(delta)
        self.leader.mark(index)
        assert self.chained.digest() == self.leader.digest()
        assert list(self.chained.stream_extents()) == list(self.leader.stream_extents())

    def do(self, command: Command) -> bytes:
        return self.apply(encode_command(command))[0]

    def session(self, client_id: bytes) -> Session:
        return self.leader.state.sessions[client_id]

    # Commands in few words.

    def attach(
        self,
        client_id: bytes = b"c",
        *,
        clean: bool = False,
        expiry: int = 100,
        window: int = 10,
        will: WillSpec | None = None,
        identity: bytes = b"",
        takes_over: bool = False,
        standard_wills: bool = False,
    ) -> Attached:
        attach = Attach(self.now_ms, client_id, clean, expiry, window, will, identity)
        attach.takes_over, attach.standard_wills = takes_over, standard_wills
        reply = self.do(attach)
        return msgspec.msgpack.decode(reply, type=Attached)

    def detach(
        self,
        client_id: bytes = b"c",
        *,
        gracefully: bool = True,
        expiry: int | None = None,
        attachment: int = 0,
        epoch: int | None = None,
        by_us: bool = False,
    ) -> None:
        found = self.leader.state.sessions.get(client_id)
        epoch = epoch if epoch is not None else (found.epoch if found is not None else 0)
        detach = Detach(self.now_ms, client_id, epoch, gracefully, expiry, attachment, by_us=by_us)
        self.do(detach)

    def subscribe(
        self, *specs: SubscriptionSpec, client_id: bytes = b"c", epoch: int | None = None
    ) -> SubscribeReply:
        found = self.leader.state.sessions.get(client_id)
        epoch = epoch if epoch is not None else (found.epoch if found is not None else 0)
        reply = self.do(Subscribe(self.now_ms, client_id, epoch, list(specs)))
        return msgspec.msgpack.decode(reply, type=SubscribeReply)

    def unsubscribe(self, *keys: bytes, client_id: bytes = b"c") -> SubscribeReply:
        epoch = self.session(client_id).epoch
        reply = self.do(Unsubscribe(self.now_ms, client_id, epoch, list(keys)))
        return msgspec.msgpack.decode(reply, type=SubscribeReply)

    def publish(self, topic: bytes, payload: bytes = b"p", qos: int = 1, **options: Any) -> int:
        """Publish from a session that is not in the log; return the reason code."""
        reply = self.apply(
            encode_publishes(
                self.now_ms, OWN_ORIGIN, 0, 0, [record(topic, payload, qos, **options)]
            )
        )[0]
        refused = decode_refusals(reply)
        assert refused is not None
        return refused[0][1] if refused else 0

    def publish_once(self, client_id: bytes, packet_id: int, topic: bytes) -> int:
        found = self.leader.state.sessions.get(client_id)
        data = encode_record(
            topic, b"p", 2, b"", 0, client_id, found.epoch if found else 0, packet_id
        )
        refused = decode_refusals(self.do(PublishOnce(self.now_ms, [data])))
        assert refused is not None
        return refused[0][1] if refused else 0

    def release(self, client_id: bytes, packet_id: int) -> int:
        return self.do(Release(self.now_ms, [(client_id, packet_id)]))[0]

    def acknowledge(self, kind: int, *packet_ids: int, client_id: bytes = b"c") -> None:
        said = [(client_id, kind, packet_id) for packet_id in packet_ids]
        self.do(Acknowledge(self.now_ms, said))

    def elapse(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)
        self.do(Elapse(self.now_ms))

    def from_there(self, *items: Item, first: int | None = None) -> None:
        """Take items of the other partition's channel."""
        begin = self._sequences + 1 if first is None else first
        self._sequences = max(self._sequences, begin + len(items) - 1)
        places = list(range(begin, begin + len(items)))
        self.do(ChannelItems(self.now_ms, THERE, places, [encode_item(each) for each in items]))

    def to_there(self) -> list[Item]:
        """Return what is new in the channel to the other partition, and let it be taken."""
        outbox = self.leader.state.channels.to(THERE)
        items = list(outbox.items)
        if items:
            self.do(ChannelAcked(THERE, outbox.last))
        return items

    # What came of it.

    def sent(self) -> list[tuple[bytes, int, bytes, int]]:
        """(client, packet id, payload, QoS) of every Send of the last command."""
        return [
            (
                each.client_id,
                each.delivery.packet_id,
                each.delivery.message.payload,
                each.delivery.qos,
            )
            for each in self.effects
            if isinstance(each, Send)
        ]

    def payloads(self) -> list[bytes]:
        """What left for connections by the last command, in order, whichever way."""
        found: list[bytes] = []
        for each in self.effects:
            if isinstance(each, Send):
                found.append(each.delivery.message.payload)
            elif isinstance(each, SendVolatile | FanOut):
                found.append(each.message.payload)
        return found


def record(
    topic: bytes,
    payload: bytes = b"p",
    qos: int = 1,
    *,
    retain: int = 0,
    expires_at_ms: int = 0,
    publisher: bytes = b"publisher",
    packet_id: int = 1,
    epoch: int = 0,
) -> bytes:
    flags = qos | (RETAIN if retain else 0)
    return encode_record(topic, payload, flags, b"", expires_at_ms, publisher, epoch, packet_id)


def message(topic: bytes, payload: bytes = b"p", qos: int = 1) -> Message:
    return Message(topic, payload, qos, False, b"", 0, b"publisher", 0, 1)  # noqa: FBT003


def spec(topic_filter: bytes, qos: int = 2, **options: object) -> SubscriptionSpec:
    return SubscriptionSpec(topic_filter, qos, **options)  # type: ignore[arg-type]
