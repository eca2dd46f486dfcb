"""Local transactions by Qpid Proton, and mutated frames: on a broker of its own process."""

from __future__ import annotations

import random
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from proton import Message
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container

from tests.interop.broker_process import BrokerProcess
from tests.interop.stock_proton import connected, is_empty, send_all, take_all

MUTATIONS = 5_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("amqp") / "var", partitions=1) as process:
        yield process


class TransactedSender(MessagingHandler, TransactionHandler):
    """Sends messages in one transaction and ends it as it is told."""

    def __init__(self, port: int, queue: str, bodies: list[str], *, commits: bool) -> None:
        super().__init__()
        self._port = port
        self._queue = queue
        self._bodies = bodies
        self._commits = commits
        self.ended = ""
        self._transaction: Any = None
        self._settled = 0

    def on_start(self, event: Any) -> None:
        self._container = event.container
        self._connection = event.container.connect(f"127.0.0.1:{self._port}", reconnect=False)
        self._sender = event.container.create_sender(self._connection, self._queue)
        event.container.declare_transaction(self._connection, handler=self)

    def on_transaction_declared(self, event: Any) -> None:
        self._transaction = event.transaction
        for body in self._bodies:
            self._transaction.send(self._sender, Message(body=body))

    def on_settled(self, event: Any) -> None:
        if event.link == self._sender:
            self._settled += 1
            if self._settled == len(self._bodies):
                self._end()

    def on_accepted(self, event: Any) -> None:
        """A transacted message is accepted provisionally; `on_settled` counts it."""

    def _end(self) -> None:
        if self._commits:
            self._transaction.commit()
        else:
            self._transaction.abort()

    def on_transaction_committed(self, event: Any) -> None:
        self._finish("committed")

    def on_transaction_aborted(self, event: Any) -> None:
        self._finish("aborted")

    def on_transaction_commit_failed(self, event: Any) -> None:
        self._finish("refused")

    def _finish(self, how: str) -> None:
        self.ended = how
        self._connection.close()


@pytest.mark.parametrize("commits", [True, False])
def test_messages_of_a_transaction_come_together_or_never(
    broker: BrokerProcess, commits: bool
) -> None:
    queue = f"transacted-{commits}"
    client = TransactedSender(broker.amqp, queue, ["a", "b", "c"], commits=commits)
    Container(client).run()
    assert client.ended == ("committed" if commits else "aborted")
    with connected(broker.amqp) as connection:
        if commits:
            assert [each.body for each in take_all(connection, queue, 3)] == ["a", "b", "c"]
        assert is_empty(connection.create_receiver(queue, credit=1))


def session_bytes(port: int) -> bytes:
    """Return what a client sends that opens, begins, attaches both ways and transfers."""
    sent = bytearray()
    listening = socket.create_server(("127.0.0.1", 0))
    forward = socket.create_connection(("127.0.0.1", port))

    def relay() -> None:
        incoming, _ = listening.accept()
        with incoming, forward:
            _pump(incoming, forward, sent)

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    with connected(listening.getsockname()[1]) as connection:
        send_all(connection, "mutated", "body")
        take_all(connection, "mutated", 1)
    thread.join(10)
    listening.close()
    return bytes(sent)


def _pump(incoming: socket.socket, forward: socket.socket, sent: bytearray) -> None:
    while True:
        ready, _, _ = select.select([incoming, forward], [], [], 10)
        if not ready:
            return
        for each in ready:
            data = each.recv(65_536)
            if not data:
                return
            if each is incoming:
                sent += data
                forward.sendall(data)
            else:
                incoming.sendall(data)


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Change a few bytes behind the headers, cut some out, or put some in."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(8, len(changed))
        match rng.randrange(3):
            case 0:
                changed[at] = rng.randrange(256)
            case 1:
                del changed[at : at + rng.randrange(1, 8)]
            case _:
                changed[at:at] = rng.randbytes(rng.randrange(1, 8))
        if len(changed) < 16:
            break
    return bytes(changed)


def test_mutated_frames_disturb_nobody_else(broker: BrokerProcess) -> None:
    seed = 20_261_117
    rng = random.Random(seed)
    good = session_bytes(broker.amqp)
    with connected(broker.amqp) as bystander:
        for number in range(MUTATIONS):
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", broker.amqp), timeout=5) as peer,
            ):
                peer.sendall(mutated(rng, good))
            if number % 1_000 == 0:
                send_all(bystander, "bystander", str(number))
                assert take_all(bystander, "bystander", 1)[0].body == str(number), seed
        send_all(bystander, "bystander", "last")
        assert take_all(bystander, "bystander", 1)[0].body == "last"
    assert "an error of our own was contained" not in broker.words()
    page = broker.page("/v1/broker/status")
    assert all(each["serves"] for each in page["partitions"])
