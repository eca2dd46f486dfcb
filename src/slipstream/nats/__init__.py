"""NATS JetStream key-value buckets behind the ports; needs the extra `nats`."""

from slipstream.nats.ack import AckFields, parse_ack
from slipstream.nats.connection import NatsConnection, NatsConnectionConfig
from slipstream.nats.store import NatsKvStore

__all__ = ["AckFields", "NatsConnection", "NatsConnectionConfig", "NatsKvStore", "parse_ack"]
