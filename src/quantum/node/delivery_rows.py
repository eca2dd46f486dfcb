"""What a node says of one message and one client: would it come, did it come, and by which rule."""

from __future__ import annotations

from clustor.control.types import Count
from quantum.node.rows import Small, TableRow


class DeliveryStep(TableRow, frozen=True, kw_only=True):
    """One thing that is looked at; where it does not pass, it stops the message."""

    rule: str
    passes: bool
    sentence: str
    command: str = ""


class MatchedSubscription(TableRow, frozen=True, kw_only=True):
    """A subscription of the client that matches the topic."""

    filter: str
    qos: Small
    share: str = ""
    no_local: bool = False
    identifier: Small = 0


class DeliveryView(TableRow, frozen=True, kw_only=True):
    """Whether a message would be delivered now: `yes`, `queued`, `perhaps` or `no`, and why."""

    tenant: str
    topic: str
    client_id: str
    qos: Small
    delivered: str
    sentence: str
    rule: str = ""
    """What stops it; empty: nothing does."""
    command: str = ""
    principal: str = ""
    connected: bool
    topic_partition: Small
    session_partition: Small
    answered_by: Small
    """The node that looked: the one that leads the session's partition, where it can be asked."""
    subscriptions: list[MatchedSubscription]
    captures: list[str]
    steps: list[DeliveryStep]


class TrailStep(TableRow, frozen=True, kw_only=True):
    """One place that a message came to, with its entry of the log; the time is the entry's own."""

    at_ms: Count
    what: str
    partition: Small
    group: Small
    index: Count
    term: Count
    sentence: str
    client_id: str = ""


class MessageTrail(TableRow, frozen=True, kw_only=True):
    """A message's way, read from logs. `unknown` says what the logs do not tell, and why."""

    id: str
    tenant: str
    topic: str
    publisher: str
    qos: Small
    bytes: Small
    message_sha256: str
    answered_by: Small
    steps: list[TrailStep]
    unknown: list[str]
