"""Moving the items of streams between partitions: what is sent, what counts, what is held.

The machines decide what is in a stream and what counts (`quantum.broker.channels`). Here is only
the leader's side: how far it sent, how far the other side got, and when to begin again.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from quantum.broker import ChannelItems, encode_command
from quantum.broker.channels import item_weight
from quantum.broker.items import Deliver, Forward, Item, encode_item
from quantum.broker.types import TRANSFER
from quantum.partition.batches import WINDOW_BYTES
from quantum.partition.ports import Completion, LeaderPort

ITEMS_PER_TURN: Final = 4_096
TELL_ITEMS: Final = 1_000
TELL_BYTES: Final = 1 << 20
TELL_TICKS: Final = 2
"""100 ms: so long what the peer has may be kept, if nothing else is logged."""
AGAIN_TICKS: Final = 10
"""Half a second without progress: what was sent is sent again."""


class StreamOut:
    """The stream from a partition that leads here to another one."""

    __slots__ = (
        "_forwards",
        "_prg",
        "_sent",
        "_untold_ticks",
        "_waited",
        "peer",
        "taken",
        "telling",
    )

    def __init__(self, prg: LeaderPort, peer: int) -> None:
        self._prg = prg
        self.peer = peer
        self._sent = 0
        self._waited = 0
        self.taken = 0
        """The peer has everything up to here, as it says."""
        self.telling = False
        """Whether a ChannelAcked is on its way into our log."""
        self._untold_ticks = 0
        self._forwards: deque[int] = deque()
        """The places of publishes that were passed on: their clients wait for our log's word."""

    def must_tell(self, *, rides: bool) -> bool:
        """Say whether our log shall learn now how far the peer got.

        It only lets go of what the peer has; an entry of its own for each batch would be a second
        round of the quorum for every publish. So it rides on an entry that is made anyway, or
        comes by itself when much, or some of it for long, is kept for nothing.
        """
        state = self._prg.broker.state
        outbox = state.channels.to(self.peer)
        untold = self.taken - outbox.acked_through
        if untold <= 0 or self.telling:
            return False
        if rides or untold >= TELL_ITEMS or self._untold_ticks >= TELL_TICKS:
            return True
        if self._has_passed_on(outbox.acked_through):
            return True
        return outbox.weight > TELL_BYTES or state.move is not None

    def _has_passed_on(self, acked_through: int) -> bool:
        """Say whether a client waits for our log to know what the peer has."""
        forwards = self._forwards
        while forwards and forwards[0] <= acked_through:
            forwards.popleft()
        return bool(forwards) and forwards[0] <= self.taken

    def tell(self) -> None:
        """Note that it is on its way."""
        self.telling, self._untold_ticks = True, 0

    def send(self) -> None:
        """Send what was not sent yet, if the peer has a leader."""
        outbox = self._prg.broker.state.channels.to(self.peer)
        self._sent = max(self._sent, outbox.acked_through)
        if outbox.last == self._sent:
            return
        items = self._prg.unblocked(outbox.after(self._sent, ITEMS_PER_TURN))
        base = max(self.taken, outbox.acked_through)
        if outbox.weight > WINDOW_BYTES:
            items = _within_window(outbox.after(base, max(0, self._sent - base)), items)
        if items and self._prg.tenant.send_items(
            self._prg.number, self.peer, self._sent + 1, items, base
        ):
            self._note_forwards(items)
            self._sent += len(items)

    def _note_forwards(self, items: list[Item]) -> None:
        last = self._forwards[-1] if self._forwards else 0
        for place, item in enumerate(items, self._sent + 1):
            if type(item) is Forward and place > last:
                self._forwards.append(place)

    def on_taken(self, through: int) -> None:
        if through > self.taken:
            self.taken, self._waited = through, 0

    def send_again(self) -> None:
        """Begin again behind what the peer is known to have."""
        self._sent = max(self.taken, self._prg.broker.state.channels.to(self.peer).acked_through)
        self._waited = 0

    def on_tick(self) -> None:
        """Begin again if nothing moved for a while; count how long our log was not told."""
        acked = self._prg.broker.state.channels.to(self.peer).acked_through
        if self.taken > acked and not self.telling:
            self._untold_ticks += 1
            if self._untold_ticks >= TELL_TICKS:
                self._prg.tenant.touch(self._prg)
        if self._sent > max(
            self.taken, self._prg.broker.state.channels.to(self.peer).acked_through
        ):
            self._waited += 1
            if self._waited >= AGAIN_TICKS:
                self.send_again()


def _within_window(flying: list[Item], waiting: list[Item]) -> list[Item]:
    """Return what may be on its way beside what is; always something where nothing is."""
    room = WINDOW_BYTES - sum(map(item_weight, flying))
    for number, item in enumerate(waiting):
        if room <= 0:
            return waiting[:number]
        room -= item_weight(item)
    return waiting


class StreamIn:
    """The stream to a partition that leads here from another one.

    What changes nothing in the machine (a message that only connections want) is carried out at
    once and not logged: its protocol's family says so. It waits behind what is on its way into the
    log, to keep the order.
    """

    __slots__ = ("_batches", "_cursor", "_prg", "origin")

    def __init__(self, prg: LeaderPort, origin: int) -> None:
        self._prg = prg
        self.origin = origin
        self._cursor = prg.broker.state.channels.counted.get(origin, 0)
        self._batches: deque[_Batch] = deque()

    def receive(self, first: int, items: list[Item], base: int) -> None:
        """Take items; what came before counts once, and a gap waits to be filled.

        What an older leader took without logging it is behind `base`, and its connections are
        gone with it.
        """
        self._cursor = max(self._cursor, base)
        if first > self._cursor + 1:
            return
        fresh = items[self._cursor + 1 - first :]
        start = self._cursor + 1
        self._cursor += len(fresh)
        logged: list[tuple[int, Item]] = []
        held: list[object] = []
        for sequence, item in enumerate(fresh, start):
            effect = None if self.origin >= TRANSFER else self._prg.read_unlogged(item)
            if effect is None:
                logged.append((sequence, item))
            elif logged:
                held.append(effect)
            elif self._batches:
                self._batches[-1].held.append(effect)
            else:
                self._prg.carry_out(effect)
        if logged:
            self._log(logged, held)
        elif self._batches:
            self._batches[-1].through = self._cursor
        else:
            self._tell(self._cursor)

    def hold(self, effect: object) -> bool:
        """Let an effect wait behind what is on its way into the log; False: nothing is."""
        if not self._batches:
            return False
        self._batches[-1].held.append(effect)
        return True

    def _log(self, items: list[tuple[int, Item]], held: list[object]) -> None:
        self._batches.append(_Batch(self._cursor, held))
        sequences = [sequence for sequence, _ in items]
        encoded = [encode_item(item) for _, item in items]
        *first, last = _split(self._prg.now_ms(), self.origin, sequences, encoded)
        for command in first:
            self._prg.propose(encode_command(command))
        completion: Completion = self._logged
        if self._prg.tenant.traces is not None:
            records = [item.record for _, item in items if type(item) is Deliver]
            completion = self._prg.traced(records, completion)
            passed = [item.record for _, item in items if type(item) is Forward]
            completion = self._prg.traced(passed, completion, passed=True)
        self._prg.propose(encode_command(last), completion)

    def _logged(self, reply: bytes | None) -> None:
        batch = self._batches.popleft()
        if reply is None:
            return  # not the leader any more: the next one begins behind what its log has
        if batch.held:
            self._prg.behind_effects(lambda: self._let_go(batch))
        self._tell(batch.through)

    def _let_go(self, batch: _Batch) -> None:
        """Deliver what waited behind logged items, now that those are on their way."""
        for effect in batch.held:
            self._prg.carry_out(effect)

    def _tell(self, through: int) -> None:
        self._prg.tenant.say_taken(self.origin, self._prg.number, through)


class _Batch:
    """Items on their way into the log, and what waits behind them."""

    __slots__ = ("held", "through")

    def __init__(self, through: int, held: list[object]) -> None:
        self.through = through
        self.held = held


def _split(
    now_ms: int, origin: int, sequences: list[int], items: list[bytes]
) -> list[ChannelItems]:
    """Make commands that each fit an entry."""
    commands: list[ChannelItems] = []
    begin, size = 0, 0
    for at, item in enumerate(items):
        if at > begin and size + len(item) > _COMMAND_BYTES_MAX:
            commands.append(ChannelItems(now_ms, origin, sequences[begin:at], items[begin:at]))
            begin, size = at, 0
        size += len(item) + 8
    commands.append(ChannelItems(now_ms, origin, sequences[begin:], items[begin:]))
    return commands


_COMMAND_BYTES_MAX: Final = 256 << 10
