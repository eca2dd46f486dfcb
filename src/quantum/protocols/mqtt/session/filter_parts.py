"""A SUBSCRIBE or UNSUBSCRIBE of many filters goes into the log part by part.

One command is applied in one go, and thousands of filters in it would hold everybody up. Each
part is proposed when the one before it was applied; the client is not read until the last one is
on its way, so that what it said behind takes effect behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from quantum.broker import SubscribeReply
from quantum.protocols.mqtt.session.session_client import SessionClient
from quantum.protocols.mqtt.session.subscribing import MakeCommand

_decode_subscribed = msgspec.msgpack.Decoder(SubscribeReply).decode


class FilterParts:
    """The commands of one packet, and what the log said of those that it has."""

    __slots__ = ("_awaited", "_connection", "_holds", "_left", "_reasons", "_then")

    def __init__(
        self,
        connection: SessionClient,
        commands: list[MakeCommand],
        then: Callable[[SubscribeReply | None], None],
    ) -> None:
        """Call `then` once: with what all parts came to, or with None when that is not known."""
        self._connection = connection
        self._left = deque(commands)
        self._then = then
        self._reasons: list[int] = []
        self._awaited: dict[int, int] = {}
        """How far other partitions must have our stream, each its last place."""
        self._holds = False

    def begin(self) -> None:
        if len(self._left) > 1:
            self._holds = True
            self._connection.hold()
        self._propose_next()

    def _propose_next(self) -> None:
        connection = self._connection
        prg = connection.prg
        assert prg is not None
        command = self._left.popleft()(prg.now_ms(), connection.epoch)
        connection.command(command, self._applied)
        if not self._left:
            self._let_go()

    def _let_go(self) -> None:
        if self._holds:
            self._holds = False
            self._connection.node.soon(self._connection.let_go)

    def _applied(self, reply: bytes | None) -> None:
        connection = self._connection
        if reply is None:
            self._let_go()
            self._then(None)
            return
        found = _decode_subscribed(reply)
        connection.learn_session(found)
        self._reasons += found.reasons
        for peer, place in found.awaited:
            self._awaited[peer] = max(place, self._awaited.get(peer, 0))
        if self._left and connection.is_live and connection.prg is not None:
            self._propose_next()
        elif self._left:
            self._let_go()
            self._then(None)
        else:
            found.reasons, found.awaited = self._reasons, list(self._awaited.items())
            self._then(found)
