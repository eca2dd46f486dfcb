"""What waits for the hard state: every message but pre-votes, and every ack.

One rule for all: while a hard state is on its way to the disk, this replica says nothing that
could rest on it. A vote that was heard and then forgotten could be cast twice in one term.
"""

from __future__ import annotations

from clustor.raft.core import Core
from clustor.raft.errors import GroupMisuse
from clustor.raft.messages import (
    AppendEntries,
    InstallSnapshot,
    Message,
    Outbound,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
)
from clustor.raft.output import PersistHardState
from clustor.raft.types import HardStateSeq, HardStateStored


class HardStateHold:
    """Numbers the hard states, and keeps messages back until the newest one is durable."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._given = core.hard
        self._seq = HardStateSeq(0)
        self._stored_seq = HardStateSeq(0)
        self._held: list[Outbound] = []

    @property
    def is_open(self) -> bool:
        """Say whether every hard state that was given out is durable."""
        return self._seq == self._stored_seq

    @property
    def has_output(self) -> bool:
        """Say whether a hard state is to be written, or what waited for one may leave."""
        return self._core.hard is not self._given or (bool(self._held) and self.is_open)

    def take_hard_state(self) -> PersistHardState | None:
        hard = self._core.hard
        if hard is self._given or hard == self._given:
            return None
        self._given = self._core.hard
        self._seq = HardStateSeq(self._seq + 1)
        return PersistHardState(self._seq, self._core.hard)

    def stored(self, receipt: HardStateStored) -> bool:
        """Take a receipt; return whether all that the hard state says now is durable."""
        if receipt.seq > self._seq:
            raise GroupMisuse("a receipt for a hard state that was never given", seq=receipt.seq)
        self._stored_seq = max(self._stored_seq, receipt.seq)
        return self.is_open and self._core.hard == self._given

    def take_messages(self) -> list[Outbound]:
        """Empty the outbox and return what may leave now."""
        messages, self._core.outbox = self._core.outbox, []
        if self.is_open:
            if self._held:
                held, self._held = self._held, []
                messages = [one for one in held if self._still_true(one[1])] + messages
            return messages
        free = (PreVoteRequest, PreVoteResponse)
        self._held += [outbound for outbound in messages if not isinstance(outbound[1], free)]
        return [outbound for outbound in messages if isinstance(outbound[1], free)]

    def _still_true(self, message: Message) -> bool:
        """Say whether a message that waited is still this replica's word."""
        core = self._core
        if isinstance(message, AppendEntries | InstallSnapshot | TimeoutNow):
            return core.leads and message.term == core.hard.term
        return message.term == core.hard.term
