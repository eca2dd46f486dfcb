"""Kafka on this node: its doors, where its clients are told to go, and whose credentials count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clustor.runtime.node import Node
from quantum.model.records import RecordProtocol
from quantum.node.controlled_records import ControlledRecords
from quantum.node.listeners import Listeners
from quantum.node.service import BrokerService
from quantum.protocols.mqtt.codec.records import records_of

KafkaPlaces = Mapping[str, Mapping[int, tuple[str, int]]]
"""By transport (`tcp`, `tls`): where each node serves Kafka's clients."""
_TRANSPORT_OF: Final = {"kafka": "tcp", "kafkas": "tls"}
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104  # compared with, never bound


def serve_kafka(
    node: Node, service: BrokerService, listeners: Listeners, places: KafkaPlaces
) -> None:
    """Put Kafka behind its doors; they open with the others."""
    adapter = service.kafka
    listeners.plaintext["kafka"] = listeners.encrypted["kafkas"] = adapter.new_connection
    adapter.node_id = int(node.node_id)
    adapter.cluster_id = str(node.cluster.id)
    adapter.passwords = service.mqtt.passwords
    if node.control is not None:
        adapter.records = ControlledRecords(node, node.control)
    adapter.readers = {RecordProtocol.MQTT: records_of}
    adapter.addresses = {name: dict(places.get(name, {})) for name in ("tcp", "tls")}

    def on_opened(name: str, host: str, port: int) -> None:
        transport = _TRANSPORT_OF.get(name)
        if transport is not None:
            own = {adapter.node_id: (_reached(host, listeners), port)}
            adapter.addresses[transport] = {**own, **adapter.addresses[transport]}

    listeners.on_opened = on_opened


def _reached(host: str, listeners: Listeners) -> str:
    """Return by what name clients reach a listener: one that listens everywhere has no own."""
    if host not in _EVERYWHERE:
        return host
    return next(iter(sorted(listeners.server_names)), "localhost")
