"""A leader's part in a change of its tenant's ring: when to begin, and when nothing old is open.

Everything that must survive is in the machine (`quantum.broker.rebalancing`); what is here is
worked out anew by every leader.
"""

from __future__ import annotations

import msgspec

from quantum.broker import (
    BeginRebalance,
    Elapse,
    Rebalanced,
    RoutesFlushed,
    encode_command,
    has_more_to_send,
)
from quantum.broker.move import Move
from quantum.partition.ports import LeaderPort

_decode_rebalanced = msgspec.msgpack.Decoder(Rebalanced).decode


class RingKeeper:
    """Of one partition, while it leads."""

    __slots__ = ("_asked", "_flush_at", "_prg", "refused")

    def __init__(self, prg: LeaderPort) -> None:
        self._prg = prg
        self._asked = False
        """Whether a word of ours is on its way into the log."""
        self._flush_at: dict[int, int] | None = None
        """Up to which number each owner has to answer; None: we route by the old ring still."""
        self.refused = ""
        """Why the log refused to begin, the last time."""

    def on_tick(self) -> None:
        """Do what is due; most of the time nothing is."""
        state, tenant = self._prg.broker.state, self._prg.tenant
        if self._asked or not state.is_open:
            return
        move = state.move
        if move is not None:
            if has_more_to_send(state):
                self._propose(Elapse(self._prg.now_ms()))
            elif not move.is_flushed:
                self._flush(move)
        elif state.routing_epoch < len(tenant.rings) and not state.routes.blind:
            self._flush_at = None
            self._begin(state.routing_epoch, state.prg_count)

    def _begin(self, epoch: int, count: int) -> None:
        """Begin once the partitions that are added have leaders: until then nobody waits."""
        tenant = self._prg.tenant
        wanted = tenant.rings[epoch].prg_count
        fresh = tenant.prgs[count:wanted]
        if len(fresh) < wanted - count or any(prg.leader_node is None for prg in fresh):
            return
        self._propose(BeginRebalance(self._prg.now_ms(), epoch + 1, wanted))

    def _flush(self, move: Move) -> None:
        """Say that nothing is open which was passed on by the old ring, as soon as it is so."""
        prg = self._prg
        if prg.tenant.prg_count < prg.broker.state.prg_count:
            return  # this node routes by the old ring still
        if self._flush_at is None:
            self._flush_at = {
                owner: forwards.next_number
                for owner, forwards in prg.forwards.items()
                if owner < move.old_count
            }
        for owner, number in self._flush_at.items():
            if prg.forwards[owner].oldest < number:
                return
        self._propose(RoutesFlushed(prg.now_ms(), move.routing_epoch))

    def _propose(self, command: BeginRebalance | RoutesFlushed | Elapse) -> None:
        self._asked = True

        def done(reply: bytes | None) -> None:
            self._asked = False
            if reply:
                self.refused = _decode_rebalanced(reply).refused

        self._prg.propose(encode_command(command), done)
