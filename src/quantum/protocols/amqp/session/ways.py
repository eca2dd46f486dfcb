"""The way from a receiver's connection to the leader of its queue: on this node, or another."""

from __future__ import annotations

from typing import Final, Protocol

from clustor.control.command_gates import CommandGate
from quantum.broker.queues import QueueEntry, Settlement
from quantum.mesh import link
from quantum.mesh.tenant import Tenant
from quantum.protocols.amqp.session.dispatch_words import AttachmentEnd, ReceiverMode, ReceiverWish
from quantum.protocols.amqp.session.partition_queues import PartitionQueues
from quantum.protocols.amqp.session.queue_dispatch import QueueReceiver, ReceiverPort
from quantum.protocols.amqp.session.selector_port import wants_of
from quantum.protocols.ports import Host

_WORD_BYTES: Final = 64


class Attachment(Protocol):
    """A receiver at the leader of its queue, until either ends it."""

    def credit(self, limit: int, taken: int, drain: int) -> None: ...
    def settle(self, said: list[Settlement]) -> None: ...
    def detach(self, *, failed: bool) -> None: ...


class LocalAttachment:
    """The leader is on this node."""

    __slots__ = ("_queues", "_receiver")

    def __init__(self, queues: PartitionQueues, receiver: QueueReceiver) -> None:
        self._queues = queues
        self._receiver = receiver

    def credit(self, limit: int, taken: int, drain: int) -> None:
        self._queues.credit(self._receiver, limit, taken, drain)

    def settle(self, said: list[Settlement]) -> None:
        self._queues.settle(self._receiver, said)

    def detach(self, *, failed: bool) -> None:
        self._queues.detach(self._receiver, failed=failed)


class RemoteAttachment:
    """The leader is on another node."""

    __slots__ = ("_prg", "_ways", "link", "node", "port")

    def __init__(self, ways: QueueWays, port: ReceiverPort, node: int, prg: int, number: int):
        self._ways = ways
        self.port = port
        self.node = node
        self._prg = prg
        self.link = number

    def credit(self, limit: int, taken: int, drain: int) -> None:
        self._say(link.QueueCredit(self._life, self._prg, self.link, limit, taken, drain))

    def settle(self, said: list[Settlement]) -> None:
        self._say(link.QueueSettles(self._life, self._prg, self.link, said), 32 * len(said))

    def detach(self, *, failed: bool) -> None:
        self._ways.remote.pop(self.link, None)
        self._say(link.QueueDetach(self._life, self._prg, self.link, failed))

    @property
    def _life(self) -> str:
        return self._ways.tenant.life

    def _say(self, said: link.Said, size: int = 0) -> None:
        self._ways.host.say(self.node, said, _WORD_BYTES + size)


class FarReceiver:
    """The connection of a receiver on another node, as the leader speaks to it."""

    __slots__ = ("_host", "_life", "_link", "_node", "_prg", "_ways")

    def __init__(self, ways: QueueWays, node: int, life: str, prg: int, number: int) -> None:
        self._ways = ways
        self._host = ways.host
        self._node = node
        self._life = life
        self._prg = prg
        self._link = number

    def deliver(self, deliveries: list[tuple[QueueEntry, bytes]]) -> None:
        size = sum(len(payload) + _WORD_BYTES for _, payload in deliveries)
        said = link.QueueDeliveries(self._life, self._prg, self._link, deliveries)
        self._host.say(self._node, said, size)

    def settled(self, numbers: list[int]) -> None:
        said = link.QueueSettled(self._life, self._prg, self._link, numbers)
        self._host.say(self._node, said, _WORD_BYTES + 9 * len(numbers))

    def drained(self, drain: int) -> None:
        self._tell(drain, AttachmentEnd.NONE)

    def ended(self, why: int) -> None:
        self._ways.far.pop((self._node, self._link), None)
        self._tell(0, why)

    def _tell(self, drained: int, ended: int) -> None:
        said = link.QueueTold(self._life, self._prg, self._link, drained, ended)
        self._host.say(self._node, said, _WORD_BYTES)


class QueueWays:
    """The ways of one tenant's receivers on this node."""

    def __init__(self, host: Host, tenant: Tenant, queues: list[PartitionQueues]) -> None:
        self.host = host
        self.tenant = tenant
        self._queues = queues
        self._links = 0
        self.remote: dict[int, RemoteAttachment] = {}
        """Attachments to leaders on other nodes, by number."""
        self.far: dict[tuple[int, int], tuple[PartitionQueues, QueueReceiver]] = {}
        """Receivers of other nodes that are attached here, by node and number."""

    def attach(
        self,
        port: ReceiverPort,
        prg: int,
        wish: ReceiverWish,
        held: list[int],
        said: list[Settlement],
    ) -> Attachment | None:
        """Attach to whoever leads the queue; None: nobody can be asked now, or it said why not."""
        queues = self._queues[prg]
        if queues.leader.leading:
            receiver = queues.attach(port, wish, wants_of(wish.selector, wish.not_from), held)
            if receiver is None:
                return None
            if said:
                queues.settle(receiver, said)
            return LocalAttachment(queues, receiver)
        node = queues.leader.leader_node
        if node is None or self.host.is_local(node) or not self.host.reaches(node):
            return None
        if not self.host.knows(node, CommandGate.QUEUES):
            return None
        self._links += 1
        found = self.remote[self._links] = RemoteAttachment(self, port, node, prg, self._links)
        word = link.QueueAttach(
            self.tenant.life,
            prg,
            self._links,
            wish.queue,
            wish.mode,
            wish.selector,
            held,
            said,
            wish.not_from,
            wish.terminus,
        )
        self.host.say(node, word, _WORD_BYTES + len(wish.selector) + 9 * len(held) + 32 * len(said))
        return found

    def link_anew(self, peer: int) -> None:
        """What rests on the link to a node ends: here and for who came from there."""
        for number in [each for each, found in self.remote.items() if found.node == peer]:
            self.remote.pop(number).port.ended(AttachmentEnd.NOT_LEADER)
        for key in [each for each in self.far if each[0] == peer]:
            queues, receiver = self.far.pop(key)
            queues.detach(receiver, failed=False)

    # What a leader elsewhere says.

    def on_deliveries(self, peer: int, said: link.QueueDeliveries) -> None:
        found = self._from(peer, said.link)
        if found is not None:
            found.port.deliver(said.deliveries)

    def on_settled(self, peer: int, said: link.QueueSettled) -> None:
        found = self._from(peer, said.link)
        if found is not None:
            found.port.settled(said.numbers)

    def on_told(self, peer: int, said: link.QueueTold) -> None:
        found = self._from(peer, said.link)
        if found is None:
            return
        if said.ended:
            del self.remote[said.link]
            found.port.ended(said.ended)
        else:
            found.port.drained(said.drained)

    def _from(self, peer: int, number: int) -> RemoteAttachment | None:
        found = self.remote.get(number)
        return found if found is not None and found.node == peer else None

    # What a receiver elsewhere says.

    def on_attach(self, peer: int, said: link.QueueAttach) -> None:
        port = FarReceiver(self, peer, said.tenant, said.prg, said.link)
        if not 0 <= said.prg < len(self._queues):
            port.ended(AttachmentEnd.NOT_LEADER)
            return
        queues = self._queues[said.prg]
        wish = ReceiverWish(
            said.queue, ReceiverMode(said.mode), said.selector, said.not_from, said.terminus
        )
        wants = wants_of(said.selector, said.not_from)
        receiver = queues.attach(port, wish, wants, said.held)
        if receiver is not None:
            self.far[peer, said.link] = queues, receiver
            if said.said:
                queues.settle(receiver, said.said)

    def on_credit(self, peer: int, said: link.QueueCredit) -> None:
        found = self.far.get((peer, said.link))
        if found is not None:
            found[0].credit(found[1], said.limit, said.taken, said.drain)

    def on_settles(self, peer: int, said: link.QueueSettles) -> None:
        found = self.far.get((peer, said.link))
        if found is not None:
            found[0].settle(found[1], said.said)

    def on_detach(self, peer: int, said: link.QueueDetach) -> None:
        found = self.far.pop((peer, said.link), None)
        if found is not None:
            found[0].detach(found[1], failed=said.failed)
