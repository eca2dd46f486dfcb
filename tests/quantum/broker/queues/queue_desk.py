"""Four replicas of a partition with queues, and few words for their commands."""

from __future__ import annotations

from typing import Any

import msgspec

from clustor.streams.changes import StreamAppend, StreamRemove, StreamTrim
from quantum.broker.queues import (
    DefineQueue,
    Enqueue,
    EnqueueReply,
    NewMessage,
    Queue,
    QueueCommand,
    QueueReply,
    QueueSection,
    QueueSpec,
    Settlement,
    SettlementKind,
    SettleMessages,
    decode_queue_reply,
    encode_queue_command,
    messages_in,
)
from tests.quantum.broker.desk import Desk

LANE = b"lane-one"


class QueueDesk(Desk):
    """`bodies` is what the files of queues would hold, by file and number."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.sequence = 0
        self.bodies: dict[int, dict[int, bytes]] = {}

    @property
    def section(self) -> QueueSection:
        section = self.leader.state.sections[2]
        assert isinstance(section, QueueSection)
        return section

    def queue(self, name: bytes = b"q") -> Queue:
        return self.section.queues[name]

    def say(self, command: QueueCommand) -> QueueReply:
        return decode_queue_reply(self.log(command))

    def log(self, command: QueueCommand) -> bytes:
        before = len(self.appended)
        reply = self.apply(encode_queue_command(self.now_ms, command))[0]
        self._file(before)
        return reply

    def elapse(self, seconds: float) -> None:
        before = len(self.appended)
        super().elapse(seconds)
        self._file(before)

    def _file(self, before: int) -> None:
        for change in self.appended[before:]:
            bodies = self.bodies.setdefault(change.partition, {})
            match change:
                case StreamAppend():
                    found = messages_in(change.payload)
                    assert len(found) == change.count
                    bodies |= {change.first + n: body for n, body in enumerate(found)}
                case StreamTrim():
                    for number in [each for each in bodies if each < change.start]:
                        del bodies[number]
                case StreamRemove():
                    del self.bodies[change.partition]
                case _:
                    pass

    def define(self, name: bytes = b"q", **spec: Any) -> QueueReply:
        return self.say(DefineQueue(QueueSpec(name, **spec)))

    def enqueue(self, *bodies: bytes | NewMessage, name: bytes = b"q") -> EnqueueReply:
        self.sequence += 1
        messages = [each if isinstance(each, NewMessage) else NewMessage(each) for each in bodies]
        return self.enqueue_as(self.sequence, [(name, messages)])

    def enqueue_as(
        self, sequence: int, batches: list[tuple[bytes, list[NewMessage]]]
    ) -> EnqueueReply:
        reply = self.log(Enqueue(LANE, sequence, batches))
        return msgspec.msgpack.decode(reply, type=EnqueueReply)

    def settle(
        self,
        kind: SettlementKind,
        *numbers: int,
        name: bytes = b"q",
        reason: bytes = b"",
        annotations: list[tuple[bytes, bytes]] | None = None,
    ) -> int:
        said = [Settlement(each, kind, reason, annotations or []) for each in numbers]
        return self.say(SettleMessages([(name, said)])).done

    def live(self, name: bytes = b"q") -> list[bytes]:
        queue = self.queue(name)
        bodies = self.bodies.get(queue.file_id, {})
        return [bodies[number] for number in sorted(queue.live)]

    def dead(self, name: bytes = b"q") -> list[tuple[bytes, bytes]]:
        queue = self.queue(name)
        bodies = self.bodies.get(queue.file_id, {})
        return [(bodies[number], queue.dead[number].dead) for number in sorted(queue.dead)]
