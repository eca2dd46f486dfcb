"""The session processor: equal logs give equal sessions, queues and retained messages."""

from quantum.broker.attaching import Attached
from quantum.broker.commands import (
    OWN_ORIGIN,
    PUBACK,
    PUBCOMP,
    PUBREC,
    Acknowledge,
    Attach,
    ChannelAcked,
    ChannelItems,
    Command,
    Detach,
    Elapse,
    LeaderStarted,
    PublishOnce,
    Release,
    RemoveSession,
    Subscribe,
    SubscriptionSpec,
    Unsubscribe,
    WillSpec,
    decode_command,
    encode_command,
    encode_publishes,
)
from quantum.broker.effects import (
    Effect,
    Ended,
    FanOut,
    Send,
    SendPubrec,
    SendPubrel,
    SendVolatile,
)
from quantum.broker.errors import BrokerError, BrokerMisuse, SnapshotUnusable
from quantum.broker.machine import Broker
from quantum.broker.message import Message, decode_record, encode_record
from quantum.broker.outbound import Delivery, Outbound
from quantum.broker.refusals import NOT_COUNTED, decode_refusals
from quantum.broker.routes import Route, Target
from quantum.broker.settings import BrokerSettings
from quantum.broker.subscribing import Subscribed

__all__ = [
    "NOT_COUNTED",
    "OWN_ORIGIN",
    "PUBACK",
    "PUBCOMP",
    "PUBREC",
    "Acknowledge",
    "Attach",
    "Attached",
    "Broker",
    "BrokerError",
    "BrokerMisuse",
    "BrokerSettings",
    "ChannelAcked",
    "ChannelItems",
    "Command",
    "Delivery",
    "Detach",
    "Effect",
    "Elapse",
    "Ended",
    "FanOut",
    "LeaderStarted",
    "Message",
    "Outbound",
    "PublishOnce",
    "Release",
    "RemoveSession",
    "Route",
    "Send",
    "SendPubrec",
    "SendPubrel",
    "SendVolatile",
    "SnapshotUnusable",
    "Subscribe",
    "Subscribed",
    "SubscriptionSpec",
    "Target",
    "Unsubscribe",
    "WillSpec",
    "decode_command",
    "decode_record",
    "decode_refusals",
    "encode_command",
    "encode_publishes",
    "encode_record",
]
