"""What other nodes' brokers say here, and whom each word is for.

Words that every node knows (relays, forwards, items, asked commands, questions) are handled here;
those of a protocol go to the adapter that registered for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from clustor.control.command_gates import CommandGate
from quantum.broker.items import decode_item
from quantum.mesh import link
from quantum.mesh.questions import NodeQuestions
from quantum.mesh.relays import Relays
from quantum.mesh.tenant import Tenant
from quantum.partition.leader import PartitionLeader


class MeshNode(Protocol):
    """What the words of other nodes are about: what this node hosts."""

    relays: Relays
    questions: NodeQuestions

    def say(self, node: int, said: link.Said, size: int) -> None: ...
    def knows(self, node: int, gate: CommandGate) -> bool: ...
    def find_tenant(self, life: str) -> Tenant | None: ...
    def find_partition(self, life: str, number: int) -> PartitionLeader | None: ...


class PeerWords:
    """Carries out what peers say. What finds nobody is dropped: its sender says it again."""

    def __init__(
        self, node: MeshNode, of_protocols: Mapping[type, Callable[[int, Any], None]]
    ) -> None:
        self._node = node
        self._of_protocols = of_protocols

    def on_said(self, peer: int, said: link.Said) -> None:
        match said:
            case link.RelayData() | link.RelayEnd() | link.RelayTaken():
                self._node.relays.on_said(peer, said)
            case link.RelayOpen():
                self._node.relays.on_open(peer, said)
            case link.RelayExpelled():
                self._node.relays.on_expelled(peer, said)
            case link.ForwardedPublishes():
                self._on_forwarded(peer, said)
            case link.ForwardsDone():
                self._on_forwards_done(said)
            case link.ForwardsHeld():
                prg = self._led(said.tenant, said.origin)
                if prg is not None:
                    prg.note_blocked(said.owner, said.reason)
            case link.Items():
                prg = self._led(said.tenant, said.prg)
                if prg is not None:
                    items = [decode_item(item) for item in said.items]
                    prg.receive_items(said.origin, said.first, items, said.base)
            case link.ItemsTaken():
                prg = self._led(said.tenant, said.origin)
                if prg is not None:
                    prg.items_taken(said.prg, said.through)
            case link.AskedCommand() | link.AnsweredCommand():
                self._on_ask(peer, said)
            case link.NodeAsked() | link.NodeAnswered():
                self._node.questions.on_said(peer, said)
            case _:
                self._of_protocols[type(said)](peer, said)

    def _led(self, life: str, number: int) -> PartitionLeader | None:
        """Return a partition if it is led here."""
        prg = self._node.find_partition(life, number)
        return prg if prg is not None and prg.leading else None

    def _on_ask(self, peer: int, said: link.AskedCommand | link.AnsweredCommand) -> None:
        tenant = self._node.find_tenant(said.tenant)
        if tenant is None:
            return  # it ends with the link, or when its asker gives up
        if isinstance(said, link.AskedCommand):
            tenant.asks.on_asked(peer, said)
        else:
            tenant.asks.on_answered(peer, said)

    def _on_forwarded(self, peer: int, said: link.ForwardedPublishes) -> None:
        prg = self._led(said.tenant, said.owner)
        if prg is None:
            return  # its sender sends again when it knows who leads
        if prg.blocked_reason and self._node.knows(peer, CommandGate.FORWARDS_HELD):
            why = prg.blocked_reason
            held = link.ForwardsHeld(said.tenant, said.origin, said.owner, why)
            self._node.say(peer, held, 64)

        def done(first: int, through: int, refused: list[tuple[int, int]], index: int) -> None:
            answer = link.ForwardsDone(
                said.tenant, said.origin, said.owner, said.term, first, through, refused, index
            )
            self._node.say(peer, answer, 64)

        prg.publish_passed(said.origin, said.term, said.first, said.records, done)

    def _on_forwards_done(self, said: link.ForwardsDone) -> None:
        prg = self._led(said.tenant, said.origin)
        if prg is not None and prg.term == said.term:
            forwards = prg.forwards.get(said.owner)
            if forwards is not None:
                forwards.done(said.first, said.through, said.refused, said.index)
