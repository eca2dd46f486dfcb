"""NATS JetStream key-value buckets behind the ports; needs the extra `nats`."""

from slipstream.errors import MissingExtra

try:
    import nats as _client  # noqa: F401 - asked for, so that its absence is said in our words
except ImportError as error:
    raise MissingExtra("nats") from error

from slipstream.nats.ack import AckFields, parse_ack
from slipstream.nats.connection import NatsConnection, NatsConnectionConfig
from slipstream.nats.store import NatsKvStore

__all__ = ["AckFields", "NatsConnection", "NatsConnectionConfig", "NatsKvStore", "parse_ack"]
