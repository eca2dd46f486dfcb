"""A client's connection to a simulated node: bytes in order, both ways, until one end is gone."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from clustor.sim.cluster import SimCluster
from clustor.sim.scenario import MS
from quantum.edge.ports import ConnectionPeer
from quantum.protocols.ports import Adapter
from quantum.sim.node import BrokerNode


class ClientEnd(Protocol):
    def received(self, line: SimLine, data: bytes) -> None: ...
    def lost(self, line: SimLine) -> None: ...


class SimLine:
    """One connection. For the broker it is a wire, for the client a line to talk on."""

    def __init__(  # noqa: PLR0917  # who talks to whom is all of these
        self,
        world: SimCluster,
        node: BrokerNode,
        client: ClientEnd,
        tenant: str,
        rng: Random,
        adapter: Adapter | None = None,
    ) -> None:
        """`adapter`: what is spoken on it; MQTT where nobody says."""
        self._world = world
        self._node = node
        self._client = client
        self._rng = rng
        self._to_broker = self._to_client = 0  # when the last bytes of each way arrive
        self._broker_gone = self._client_gone = False
        self._handler = (adapter or node.service.mqtt).new_connection()
        self._is_open = False
        self._peer = ConnectionPeer("tcp", "sim", tenant)

    def _way(self, latest: int) -> int:
        return max(self._world.timeline.now + self._rng.randint(50, 800), latest)

    def _at(self, at: int, call: Callable[[], None]) -> None:
        self._world.later(at - self._world.timeline.now, call)

    # The client's side.

    def send(self, data: bytes) -> None:
        self._to_broker = self._way(self._to_broker)
        self._at(self._to_broker, lambda: self._arrive(data))

    def _arrive(self, data: bytes) -> None:
        if self._broker_gone or self._node.is_over:
            return
        if not self._is_open:
            self._is_open = True
            self._handler.opened(self, self._peer)
        self._handler.received(data)
        self._node.turn_soon()

    def drop(self) -> None:
        """The client's end is gone; the broker hears of it after a while."""
        if self._client_gone:
            return
        self._client_gone = True
        self._to_broker = self._way(self._to_broker) + self._rng.choice((0, 50 * MS))
        self._at(self._to_broker, self._end_broker)

    def _end_broker(self) -> None:
        if not self._broker_gone:
            self._broker_gone = True
            if self._is_open and not self._node.is_over:
                self._handler.lost()
                self._node.turn_soon()

    def node_gone(self) -> None:
        """The broker's process is gone; the client hears of it after a while."""
        if not self._broker_gone:
            self._broker_gone = True
            self._at(self._way(self._to_client) + self._rng.randrange(30 * MS), self._end_client)

    def _end_client(self) -> None:
        if not self._client_gone:
            self._client_gone = True
            self._client.lost(self)

    @property
    def node(self) -> BrokerNode:
        return self._node

    # The broker's side.

    def write(self, data: bytes) -> None:
        assert not self._broker_gone, "nothing is written behind a close"
        self._to_client = self._way(self._to_client)

        def arrive() -> None:
            if not self._client_gone:
                self._client.received(self, data)

        self._at(self._to_client, arrive)

    @property
    def writable(self) -> bool:
        return True

    def close(self) -> None:
        if not self._broker_gone:
            self._broker_gone = True
            self._node.later(self._handler.lost)
            self._at(self._way(self._to_client), self._end_client)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        """Whoever waits for answers sends little."""

    def resume_reading(self) -> None:
        """Nothing was held back."""
