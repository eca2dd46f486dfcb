"""The doors of a broker node: MQTT in plaintext (development only), over TLS, over WebSocket."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from clustor.runtime.pki import utc_now
from quantum.edge import (
    AdmissionLimits,
    EdgeLimits,
    Listener,
    Lobby,
    TlsListener,
    WebSocketLimits,
    over_websocket,
    require_loopback,
)
from quantum.edge.listener_files import connections_possible, raise_file_limit
from quantum.edge.tls_development import prepare_server
from quantum.serving.service import BrokerService

journal = logging.getLogger("quantum.edge")


@dataclass(frozen=True, slots=True)
class Door:
    """Where to listen; port 0 is any free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Doors:
    """Which doors to open. None stays shut."""

    mqtt: Door | None = None
    mqtts: Door | None = None
    ws: Door | None = None
    connections_max: int = 100_000
    connections_per_second: int = 5_000
    first_packet_seconds: int = 10


class Listeners:
    """All listeners of one node, with one lobby before them."""

    def __init__(self, service: BrokerService, doors: Doors, data: Path, tenant: str) -> None:
        self._service = service
        self._doors = doors
        self._data = data
        self._tenant = tenant
        possible = connections_possible(doors.connections_max, raise_file_limit())
        if possible < doors.connections_max:
            journal.info("the system's limit of open files allows %d clients at once", possible)
        limits = EdgeLimits(
            admission=AdmissionLimits(
                connections_max=possible,
                per_second=float(doors.connections_per_second),
                burst=doors.connections_per_second,
                waiting_max=possible,
            ),
            first_answer_seconds=float(doors.first_packet_seconds),
        )
        self._lobby = Lobby(limits)
        self.open: dict[str, tuple[Listener, Door]] = {}

    async def start(self) -> None:
        """Open the doors. Raises EdgeError."""
        new = self._service.new_connection
        doors = self._doors
        if doors.mqtt is not None:
            require_loopback("mqtt", doors.mqtt.host, development=True)
            await self._open(
                "mqtt", Listener("mqtt", self._lobby, new, tenant=self._tenant), doors.mqtt
            )
        if doors.ws is not None:
            require_loopback("ws", doors.ws.host, development=True)
            frames = over_websocket(new, WebSocketLimits())
            await self._open(
                "ws", Listener("ws", self._lobby, frames, tenant=self._tenant), doors.ws
            )
        if doors.mqtts is not None:
            listener = TlsListener(
                "mqtts",
                self._lobby,
                new,
                certificates=prepare_server(self._data, utc_now()),
                tenant_of=lambda _name: self._tenant,
            )
            await self._open("mqtts", listener, doors.mqtts)

    async def _open(self, name: str, listener: Listener, door: Door) -> None:
        await listener.start(door.host, door.port)
        self.open[name] = (listener, Door(door.host, listener.port))

    def stop_accepting(self) -> None:
        """Let nobody else in."""
        for listener, _ in self.open.values():
            listener.stop_accepting()
