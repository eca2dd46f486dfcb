"""Local transactions of AMQP by Qpid Proton's blocking client."""

from __future__ import annotations

from typing import Any

from proton import Described, Message, Terminus, symbol, ulong
from proton.reactor import LinkOption

from clustor.runtime.peers.transport import Address
from quantum.cli.admin_client import fetch, post

_ACCEPTED, _REJECTED, _RELEASED, _TRANSACTIONAL = 0x24, 0x25, 0x26, 0x34
WAIT_SECONDS = 60.0


class CoordinatorTarget(LinkOption):
    """Let a sender's target be the coordinator of transactions."""

    def apply(self, link: Any) -> None:
        link.target.type = Terminus.COORDINATOR


class BlockingTransactions:
    """Transactions of one connection, one after the other or at once."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.link = connection.create_sender(None, options=CoordinatorTarget())

    def begin(self) -> bytes:
        declare = Described(symbol("amqp:declare:list"), [None])
        answer = self.link.send(Message(body=declare), timeout=WAIT_SECONDS)
        return bytes(answer.remote.data[0])

    def send(self, transaction: bytes, sender: Any, message: Message) -> None:
        """Send under a transaction, and wait until it has the message."""
        delivery = sender.link.send(message)
        delivery.local.data = [transaction]
        delivery.update(_TRANSACTIONAL)
        self._connection.wait(lambda: delivery.settled, timeout=WAIT_SECONDS)
        delivery.settle()

    def accept(self, transaction: bytes, receiver: Any) -> None:
        """Accept what was received first, under a transaction."""
        self._settle(transaction, receiver, _ACCEPTED)

    def reject(self, transaction: bytes, receiver: Any) -> None:
        self._settle(transaction, receiver, _REJECTED)

    def release(self, transaction: bytes, receiver: Any) -> None:
        self._settle(transaction, receiver, _RELEASED)

    def _settle(self, transaction: bytes, receiver: Any, outcome: int) -> None:
        delivery = receiver.fetcher.unsettled.popleft()
        delivery.local.data = [transaction, Described(ulong(outcome), [])]
        delivery.update(_TRANSACTIONAL)
        delivery.settle()

    def end(self, transaction: bytes, *, commit: bool = True) -> None:
        """Discharge a transaction. Raises SendException where it is refused."""
        discharge = Described(symbol("amqp:discharge:list"), [transaction, not commit])
        self.link.send(Message(body=discharge), timeout=WAIT_SECONDS)


def spread_over(admin: Address, prefix: str, partitions: int = 3) -> list[str]:
    """Make queues until there is one in each partition; return one of each."""
    found: dict[int, str] = {}
    for number in range(256):
        name = f"{prefix}-{number}"
        code, page = post(admin, "/v1/tenants/dev/queues", {"name": name})
        assert code in {200, 201}, page
        code, page = fetch(admin, f"/v1/tenants/dev/queues/{name}")
        if code == 200:  # else this node's copy does not have it yet: others will do
            found.setdefault(page["partition"], name)
        if len(found) == partitions:
            return [found[each] for each in sorted(found)]
    raise AssertionError(found)
