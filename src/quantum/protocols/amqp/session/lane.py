"""The lane of this node to one partition: what clients send, numbered, until the log has it.

All that one turn brings is one command. A command whose answer is not known goes again, with all
behind it and under the same numbers: the machine counts each once, and none behind a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from quantum.broker.queues import (
    Enqueue,
    EnqueueReply,
    LaneCommand,
    NewMessage,
    QueueRefusal,
    decode_enqueue_reply,
    encode_queue_command,
)
from quantum.mesh.tenant import Tenant
from quantum.partition.gate import ClientOperation

Done = Callable[[QueueRefusal], None]
MakeCommand = Callable[[bytes, int], LaneCommand]
"""Makes a command for a lane and a number."""

OPEN_MAX: Final = 16
"""Commands on their way at once; the machine keeps the answers of twice as many."""
BYTES_MAX: Final = 1 << 20
"""What one command has, unless one message alone has more."""
MESSAGES_MAX: Final = 4_096
_ANSWER_MS_MAX: Final = 3_000
"""An answer that is not here by then is asked for again."""


@dataclass(slots=True)
class _Open:
    command: bytes
    dones: list[list[Done]]
    asked_ms: int = 0


class _Batch:
    """What waits for the next command."""

    __slots__ = ("bytes", "count", "dones", "make", "queues")

    def __init__(self, make: MakeCommand | None = None) -> None:
        self.queues: dict[bytes, list[NewMessage]] = {}
        self.dones: dict[bytes, list[Done]] = {}
        self.make = make
        """How a command that stands alone is made; None: this is a batch of messages."""
        self.bytes = 0
        self.count = 0


class SenderLane:
    """What this node's clients have for the queues of one partition."""

    def __init__(self, tenant: Tenant, prg: int, name: bytes, clock_ms: Callable[[], int]) -> None:
        self._tenant = tenant
        self._prg = prg
        self._name = name
        self._clock_ms = clock_ms
        self._sequence = 0
        self._waiting: list[_Batch] = []
        self._open: dict[int, _Open] = {}
        self._is_due = False
        self._is_lost = False
        self._leader: tuple[int | None, bool] = (None, False)

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._open)

    def add(self, queue: bytes, message: NewMessage, done: Done) -> None:
        """Let a message go with this turn; `done` is called when the log has it, or has not."""
        batch = self._waiting[-1] if self._waiting else None
        size = len(message.payload)
        if (
            batch is None
            or batch.make is not None
            or batch.count >= MESSAGES_MAX
            or batch.bytes + size > BYTES_MAX
        ):
            batch = _Batch()
            self._waiting.append(batch)
        batch.queues.setdefault(queue, []).append(message)
        batch.dones.setdefault(queue, []).append(done)
        batch.bytes += size
        batch.count += 1
        self._soon()

    def add_alone(self, make: MakeCommand, done: Done) -> None:
        """Let a command go that stands alone, behind all that was added before."""
        batch = _Batch(make)
        batch.dones[b""] = [done]
        self._waiting.append(batch)
        self._soon()

    def _soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._tenant.soon(self.flush)

    def flush(self) -> None:
        """Ask for what waits, as long as there is room on the way."""
        self._is_due = False
        while self._waiting and len(self._open) < OPEN_MAX and not self._is_lost:
            if self._is_closed():
                return
            batch, sequence = self._waiting.pop(0), self._sequence + 1
            said: LaneCommand
            if batch.make is None:
                said = Enqueue(self._name, sequence, list(batch.queues.items()))
            else:
                said = batch.make(self._name, sequence)
            command = encode_queue_command(self._tenant.now_ms(), said)
            self._sequence = sequence  # behind what may fail: a number that is missing stops all
            self._open[sequence] = _Open(command, list(batch.dones.values()))
            self._ask(self._sequence)

    def _is_closed(self) -> bool:
        """Say whether the partition takes nothing now (quantumqtt §10.6): then it waits."""
        leader = self._tenant.prgs[self._prg]
        return leader.leading and ClientOperation.PUBLISH in leader.closed

    def _ask(self, sequence: int) -> None:
        entry = self._open[sequence]
        entry.asked_ms = self._clock_ms()
        self._tenant.asks.ask(
            self._prg, entry.command, lambda reply: self._answered(sequence, reply)
        )

    def _answered(self, sequence: int, reply: bytes | None) -> None:
        if sequence not in self._open:
            return  # it was answered before
        answer = _read(reply)
        if answer is None or answer.refusal is QueueRefusal.GAP:
            self._is_lost = True
            return
        entry = self._open.pop(sequence)
        refused = {(batch, place): why for batch, place, why in answer.refused}
        for number, dones in enumerate(entry.dones):
            for place, done in enumerate(dones):
                done(refused.get((number, place), answer.refusal))
        if self._waiting:
            self._soon()

    def on_tick(self, now_ms: int) -> None:
        """Ask again where nobody knows what became of it."""
        prg = self._tenant.prgs[self._prg]
        leader = (prg.leader_node, prg.leading)
        moved, self._leader = leader != self._leader, leader
        if not self._open:
            self._is_lost = False
        elif prg.leader_node is not None:
            oldest = next(iter(self._open.values()))
            if self._is_lost or moved or now_ms - oldest.asked_ms > _ANSWER_MS_MAX:
                self._is_lost = False
                for sequence in list(self._open):
                    self._ask(sequence)
        if self._waiting:
            self._soon()


def _read(reply: bytes | None) -> EnqueueReply | None:
    if not reply:
        return None
    try:
        return decode_enqueue_reply(reply)
    except msgspec.DecodeError:
        return None
