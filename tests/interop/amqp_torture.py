"""Stock AMQP clients that go on whatever happens to nodes, and what they saw."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from proton import ConnectionException, Message, ProtonException
from proton.utils import BlockingConnection, SendException

from quantum.protocols.amqp.engine.composites import DetachFrame, DispositionFrame
from quantum.protocols.amqp.engine.messages import encode_data
from tests.interop.proton_transactions import BlockingTransactions
from tests.interop.raw_amqp import RawClient, connect_raw

_FAILURES = (ProtonException, ConnectionException, OSError)


@dataclass
class Seen:
    """What all clients of a run saw. `accepted` counts who accepted what, and on which life."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    told: set[str] = field(default_factory=set)
    accepted: dict[str, list[int]] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)
    rejected: set[str] = field(default_factory=set)
    lives: int = 0

    def begin(self) -> int:
        with self.lock:
            self.lives += 1
            return self.lives

    def lost(self) -> set[str]:
        return self.told - self.accepted.keys() - self.rejected

    def twice(self) -> set[str]:
        """What was accepted twice, though whoever did so first stayed connected."""
        return {
            each
            for each, lives in self.accepted.items()
            if len(lives) > 1 and lives[0] not in self.broken
        }


class TortureClient(threading.Thread):
    """Dials one node after the other until it is told to stop."""

    def __init__(self, ports: list[int], queue: str, name: str, seen: Seen) -> None:
        super().__init__(daemon=True, name=name)
        self._ports = ports
        self._queue = queue
        self._next = hash(name) % len(ports)
        self.seen = seen
        self.stopping = threading.Event()
        self.options: dict[str, Any] = {}
        """What each connection is asked for."""

    def run(self) -> None:
        while not self.stopping.is_set():
            self._next = (self._next + 1) % len(self._ports)
            life = self.seen.begin()
            connection: Any = None
            try:
                connection = BlockingConnection(
                    f"127.0.0.1:{self._ports[self._next]}", timeout=5, heartbeat=2, **self.options
                )
                self.work(connection, life)
            except _FAILURES:
                self.seen.broken.add(life)
                time.sleep(0.05)
            finally:
                if connection is not None:
                    with suppress(*_FAILURES):
                        connection.close()

    def work(self, connection: Any, life: int) -> None:
        raise NotImplementedError


class TortureSender(TortureClient):
    """Each attempt is a message of its own: what is not told may come, or not."""

    count = 0

    def work(self, connection: Any, life: int) -> None:
        sender = connection.create_sender(self._queue)
        while not self.stopping.is_set():
            self.count += 1
            body = f"{self.name}-{self.count}"
            sender.send(Message(body=body), timeout=20)
            with self.seen.lock:
                self.seen.told.add(body)


class TortureReceiver(TortureClient):
    """Accepts everything, but for what ends in 7: that is rejected."""

    def work(self, connection: Any, life: int) -> None:
        receiver = connection.create_receiver(self._queue, credit=10)
        while not self.stopping.is_set():
            try:
                body: str = receiver.receive(timeout=1).body
            except ProtonException as error:
                if type(error).__name__ == "Timeout":
                    continue
                raise
            with self.seen.lock:
                if body.endswith("7"):
                    self.seen.rejected.add(body)
                    receiver.reject()
                else:
                    self.seen.accepted.setdefault(body, []).append(life)
                    receiver.accept()


class TortureMover(TortureClient):
    """Takes from a queue and sends to two others, each message in a transaction of its own."""

    def __init__(
        self, ports: list[int], queue: str, targets: list[str], name: str, seen: Seen
    ) -> None:
        super().__init__(ports, queue, name, seen)
        self._targets = targets
        self.moved = self.refused = 0

    def work(self, connection: Any, life: int) -> None:
        receiver = connection.create_receiver(self._queue, credit=3)
        senders = [connection.create_sender(each) for each in self._targets]
        transactions = BlockingTransactions(connection)
        while not self.stopping.is_set():
            try:
                body = receiver.receive(timeout=1).body
            except ProtonException as error:
                if type(error).__name__ == "Timeout":
                    continue
                raise
            transaction = transactions.begin()
            for sender in senders:
                transactions.send(transaction, sender, Message(body=body))
            transactions.accept(transaction, receiver)
            try:
                transactions.end(transaction)
                self.moved += 1
            except SendException:
                self.refused += 1


class ResumingSender(threading.Thread):
    """Sends on a durable link, and resumes it on another node when one is gone."""

    def __init__(self, ports: list[int], queue: str, name: str) -> None:
        super().__init__(daemon=True, name=name)
        self._ports = ports
        self._queue = queue
        self._unsettled: dict[bytes, bytes] = {}
        self.made = self.resumed = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set() or self._unsettled:
            self._ports = [*self._ports[1:], self._ports[0]]
            with suppress(OSError), connect_raw(self._ports, self.name) as client:
                self.resumed += 1
                self._resume(client)

    def _resume(self, client: RawClient) -> None:
        known = client.attach_sender("durable", self._queue, dict.fromkeys(self._unsettled)) or {}
        for tag in known:
            del self._unsettled[tag]
        number, sent = 0, {}
        for tag, payload in self._unsettled.items():
            client.send(number, tag, payload)
            sent[number] = tag
            number += 1
        while sent or not self.stopping.is_set():
            if len(sent) < 20 and not self.stopping.is_set():
                tag, payload = b"%d" % self.made, encode_data(b"%d" % self.made)
                self.made += 1
                self._unsettled[tag] = payload
                client.send(number, tag, payload)
                sent[number] = tag
                number += 1
                continue
            said, _ = client.next()
            if isinstance(said, DetachFrame):
                return
            if isinstance(said, DispositionFrame):
                last = said.first if said.last is None else said.last
                for each in range(said.first, last + 1):
                    self._unsettled.pop(sent.pop(each), None)
