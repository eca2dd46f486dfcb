"""All relays of one node: those of its clients, and those that end at sessions it leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from quantum.edge.ports import ConnectionPeer, Handler, WirePort
from quantum.mesh import link
from quantum.mesh.relay import RelayEntry, RelayExit
from quantum.partition.leader import PartitionLeader

_SENT_AWAY_AT_ONCE: Final = 48  # in a tick: clients that all come back at once are a storm
_MOVED_CHECKS: Final = 2
"""A relay to a node that leads no more ends after half a second to a second."""


class RelayNode(Protocol):
    """What relays ask of their node."""

    def say(self, node: int, said: link.Said, size: int) -> None: ...
    def soon(self, call: Callable[[], None]) -> None: ...


class Relays:
    """Numbered by the node that the client reached; no other process of it used the numbers."""

    def __init__(
        self, node: RelayNode, first: int, new_handler: Callable[[bytes], Handler]
    ) -> None:
        """`new_handler` makes what serves a client that another node sent, with its id."""
        self._node = node
        self._next = first
        self._new_handler = new_handler
        self._entries: dict[int, tuple[int, RelayEntry]] = {}
        self._exits: dict[tuple[int, int], RelayExit] = {}
        self._moved: dict[PartitionLeader, int] = {}
        """Partitions whose leader changed lately: relays to older leaders end after a while."""

    def say(self, node: int, said: link.Said, size: int) -> None:
        self._node.say(node, said, size)

    def soon(self, call: Callable[[], None]) -> None:
        self._node.soon(call)

    def open(  # noqa: PLR0917  # a relay is all of these
        self,
        wire: WirePort,
        peer: ConnectionPeer,
        prg: PartitionLeader,
        node: int,
        client_id: bytes,
        data: bytes,
    ) -> RelayEntry:
        """Let another node serve a client that came here."""
        self._next += 1
        number = self._next
        entry = RelayEntry(self, wire, prg, node, number, data)
        self._entries[number] = (node, entry)
        said = link.RelayOpen(
            number,
            peer.transport,
            peer.address,
            peer.tenant,
            peer.identity,
            peer.server_name,
            peer.not_after_ms,
            client_id,
            data,
            peer.named_tenant,
        )
        self.say(node, said, len(data) + 128)
        return entry

    def forget_entry(self, number: int) -> None:
        self._entries.pop(number, None)

    def forget_exit(self, node: int, number: int) -> None:
        self._exits.pop((node, number), None)

    # What other nodes say.

    def on_open(self, node: int, said: link.RelayOpen) -> None:
        """Serve a client of another node."""
        peer = ConnectionPeer(
            said.transport,
            said.address,
            said.tenant,
            said.identity,
            said.server_name,
            said.not_after_ms,
            said.named_tenant,
        )
        relay_exit = RelayExit(self, node, said.relay)
        self._exits[node, said.relay] = relay_exit
        handler = self._new_handler(said.client_id)
        relay_exit.handler = handler
        handler.opened(relay_exit, peer)
        handler.received(said.data)

    def on_expelled(self, peer: int, said: link.RelayExpelled) -> None:
        """A client of another node is believed no more."""
        relay_exit = self._exits.get((peer, said.relay))
        if relay_exit is not None:
            relay_exit.expelled(said.why)

    def on_said(self, peer: int, said: link.RelayData | link.RelayEnd | link.RelayTaken) -> None:
        """Take what concerns one relay."""
        end: RelayEntry | RelayExit | None
        if said.opened_here:
            end = self._exits.get((peer, said.relay))
        else:
            node, entry = self._entries.get(said.relay, (0, None))
            end = entry if node == peer else None
        if end is None:
            if isinstance(said, link.RelayData):  # whoever still speaks should know
                self.say(peer, link.RelayEnd(said.relay, opened_here=not said.opened_here), 32)
            return
        if isinstance(said, link.RelayData):
            end.on_data(said.data)
        elif isinstance(said, link.RelayTaken):
            end.on_taken(said.taken)
        elif isinstance(end, RelayExit):
            del self._exits[peer, said.relay]
            end.node_lost() if said.by_us else end.lost()
        else:
            del self._entries[said.relay]
            end.end(again=said.again)

    # What ends them.

    def link_anew(self, peer: int) -> None:
        """Something between the nodes was lost, and every relay between them ends.

        The peer is told of each. It may have lost nothing: a node hears of the end of an old
        connection when a new one is in use already.
        """
        for number, (node, entry) in list(self._entries.items()):
            if node == peer:
                del self._entries[number]
                self.say(peer, link.RelayEnd(number, opened_here=True, by_us=True), 32)
                entry.end()
        for key, relay_exit in list(self._exits.items()):
            if key[0] == peer:
                del self._exits[key]
                self.say(peer, link.RelayEnd(key[1], opened_here=False), 32)
                relay_exit.node_lost()

    def send_some_away(self) -> None:
        """End some of the connections that only pass through here: their clients dial elsewhere."""
        for number, (node, entry) in list(self._entries.items())[:_SENT_AWAY_AT_ONCE]:
            del self._entries[number]
            self.say(node, link.RelayEnd(number, opened_here=True, by_us=True), 32)
            entry.end(again=False)

    def leader_changed(self, prg: PartitionLeader) -> None:
        """Note that relays to a partition may lead to the wrong node now."""
        self._moved[prg] = _MOVED_CHECKS

    def end_strays(self) -> None:
        """End relays to nodes that lead no more; while they live they end them themselves."""
        if not self._moved:
            return
        moved = {prg: checks - 1 for prg, checks in self._moved.items()}
        self._moved = {prg: checks for prg, checks in moved.items() if checks}
        for number, (node, entry) in list(self._entries.items()):
            leader = entry.prg.leader_node
            if moved.get(entry.prg) == 0 and leader is not None and leader != node:
                del self._entries[number]
                self.say(node, link.RelayEnd(number, opened_here=True), 32)
                entry.end()
