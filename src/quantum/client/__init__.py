"""A small MQTT client: a pure session, and a thin shell that carries it over a socket."""

from quantum.client.client import Endpoint, MqttClient
from quantum.client.errors import (
    BrokerRefused,
    ClientError,
    ConnectionLost,
    NotAcknowledged,
    Unreachable,
)
from quantum.client.session import ClientOptions, ClientSession

__all__ = [
    "BrokerRefused",
    "ClientError",
    "ClientOptions",
    "ClientSession",
    "ConnectionLost",
    "Endpoint",
    "MqttClient",
    "NotAcknowledged",
    "Unreachable",
]
