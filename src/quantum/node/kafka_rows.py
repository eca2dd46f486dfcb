"""What a node says of its tenants' Kafka topics and consumer groups, as types."""

from __future__ import annotations

from clustor.control.types import Count
from quantum.node.rows import Small, TableRow, WaitCause


class KafkaTopicRow(TableRow, frozen=True, kw_only=True):
    """A topic, as this node's replicas have it. `kind`: a topic, or a capture shown as one."""

    name: str
    kind: str
    partition_count: Small
    records: Count
    """Offsets from the first that is kept to the end, of all partitions."""
    file_bytes: Count
    created_ms: Count


class KafkaTopicPage(TableRow, frozen=True, kw_only=True):
    items: list[KafkaTopicRow]
    after: str | None = None


class KafkaPartitionRow(TableRow, frozen=True, kw_only=True):
    """One partition; `group` is the Raft group that it lives in."""

    partition: Small
    group: Small
    leader: Small | None
    epoch: Small
    start: Count
    end: Count
    last_stable: Count
    """Below this every transaction has ended."""
    file_bytes: Count
    closed: str
    """Why nothing may be written now; empty: it may, as far as this node knows."""


class KafkaTopicInfo(KafkaTopicRow, frozen=True, kw_only=True):
    partitions: list[KafkaPartitionRow]
    configs: dict[str, str]


class KafkaGroupRow(TableRow, frozen=True, kw_only=True):
    """A consumer group, as this node's replica has it. `state` is Kafka's word."""

    name: str
    state: str
    kind: str
    """classic, or consumer (KIP-848)."""
    member_count: Small
    committed: Small
    """How many partitions it has committed."""
    lag: Count
    coordinator: Small | None


class KafkaGroupPage(TableRow, frozen=True, kw_only=True):
    items: list[KafkaGroupRow]
    after: str | None = None


class KafkaMemberRow(TableRow, frozen=True, kw_only=True):
    """A consumer; `partitions` are those that it was given, as TOPIC/PARTITION."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[str]


class KafkaLagRow(TableRow, frozen=True, kw_only=True):
    """How far a group is in one partition; nothing committed is no `committed`."""

    topic: str
    partition: Small
    group: Small | None
    leader: Small | None
    start: Count | None
    committed: Count | None
    end: Count | None
    """None: this node has no replica of it, or the topic is gone."""
    lag: Count | None
    member_id: str | None


class KafkaGroupInfo(KafkaGroupRow, frozen=True, kw_only=True):
    generation: Small
    protocol: str
    members: list[KafkaMemberRow]
    partitions: list[KafkaLagRow]


class KafkaGroupWhy(TableRow, frozen=True, kw_only=True):
    """Why a group is behind, the most telling cause first; none: nothing is in its way."""

    name: str
    lag: Count
    causes: list[WaitCause]


class KafkaDone(TableRow, frozen=True, kw_only=True):
    name: str
