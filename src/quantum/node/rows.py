"""What a node says of its broker, as types: pages are made of these, and the document says them.

What can exceed 32 bits is a `Count`, and is spelled as text in answers; the rest is `Small`.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from clustor.control.types import Count

Small: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """The root of what is shown."""


class WaitCause(TableRow, frozen=True, kw_only=True):
    """One thing that something waits for, and what helps; not all that is waited for is wrong."""

    clause: str
    sentence: str
    remedy: str = ""
    is_wrong: bool = True


class PartitionRow(TableRow, frozen=True, kw_only=True):
    """One partition, as this node's replica has it; who is connected is known to its leader."""

    tenant: str
    partition: Small
    group: Small
    leader: Small | None
    serves: bool
    state: str
    sessions: Small
    connected: Small
    filters: Small
    retained: Small
    queued: Small
    channels: dict[str, Small]
    applied_index: Count
    routing_epoch: Small
    prg_count: Small
    open: bool
    waits_for: list[str]


class StoppedGroup(TableRow, frozen=True, kw_only=True):
    group: Small
    cause: str


class DiskRow(TableRow, frozen=True, kw_only=True):
    level: str
    free_bytes: Count | None


class BrokerStatus(TableRow, frozen=True, kw_only=True):
    """How the broker of this node stands."""

    connections: Small
    dropped: Count
    faults: dict[str, Small]
    partitions: list[PartitionRow]
    stopped: list[StoppedGroup]
    disk: DiskRow
    closed: list[str]


class DigestRow(TableRow, frozen=True, kw_only=True):
    tenant: str
    partition: Small
    index: Count
    digest: str


class Digests(TableRow, frozen=True, kw_only=True):
    """The state of each partition at this moment; `quantum log replay` gives the same."""

    partitions: list[DigestRow]


class FilterRow(TableRow, frozen=True, kw_only=True):
    filter: str
    qos: Small
    identifier: Small | None


class SessionRow(TableRow, frozen=True, kw_only=True):
    client_id: str
    partition: Small
    connected: bool
    expiry_seconds: Small
    epoch: Count = 0
    subscriptions: Small = 0
    queued: Small = 0
    in_flight: Small = 0
    queued_bytes: Count = 0
    unreleased: Small = 0
    full: bool = False


class SessionView(SessionRow, frozen=True, kw_only=True):
    """One session with all that it subscribes to."""

    filters: list[FilterRow] = []
    has_will: bool = False
    ends_at_ms: Count | None = None


class ClientRow(TableRow, frozen=True, kw_only=True):
    """A client that is connected, as the leader of its session's partition sees it."""

    client_id: str
    partition: Small
    identity: str | None
    transport: str
    address: str
    protocol: str
    keep_alive_seconds: Small
    expiry_seconds: Small
    queued_bytes: Count


class LedElsewhere(TableRow, frozen=True, kw_only=True):
    """A partition whose clients another node knows; null: nobody leads it now."""

    partition: Small
    leader: Small | None


class Payload(TableRow, frozen=True, kw_only=True):
    """Bytes: as text where they are text, else in base64."""

    text: str | None = None
    base64: bytes | None = None


class RetainedRow(TableRow, frozen=True, kw_only=True):
    """A retained message, with the first kibibyte of its payload."""

    topic: str
    qos: Small
    bytes: Small
    payload: Payload
    partition: Small


class TopicRow(TableRow, frozen=True, kw_only=True):
    filter: str
    subscribers: Small


class RowPage(TableRow, frozen=True, kw_only=True):
    """Some of a list. `after` is where the next page begins; null: there is none."""

    after: str | None


class SessionPage(RowPage, frozen=True, kw_only=True):
    items: list[SessionRow]


class ClientPage(RowPage, frozen=True, kw_only=True):
    """Clients of the partitions that this node leads; `elsewhere` says whom to ask for the rest."""

    items: list[ClientRow]
    elsewhere: list[LedElsewhere]


class RetainedPage(RowPage, frozen=True, kw_only=True):
    items: list[RetainedRow]


class TopicPage(RowPage, frozen=True, kw_only=True):
    items: list[TopicRow]


class RingPartition(TableRow, frozen=True, kw_only=True):
    partition: Small
    routing_epoch: Small
    prg_count: Small
    open: bool
    leader: Small | None
    waits_for: list[str]


class RingView(TableRow, frozen=True, kw_only=True):
    """Where a tenant's ring is, as far as this node's replicas know."""

    tenant: str
    routing_epoch: Small
    prg_count: Small
    settled: bool
    partitions: list[RingPartition]


class RingOrdered(TableRow, frozen=True, kw_only=True):
    """The order is written down; it is carried out whatever happens to who gave it."""

    tenant: str
    prg_count: Small
    epoch: Small


class SessionEnded(TableRow, frozen=True, kw_only=True):
    client_id: str


class ArchiveRow(TableRow, frozen=True, kw_only=True):
    prg: str
    state: str
    reason: str
    committed_index: Count
    archived_index: Count
    behind: Count
    archived_bytes: Count
    archived_at_ms: Count | None
    compaction_held_through: Count | None
    compaction_hold: str
    hold_released_at_ms: Count | None
    leads: bool


class AuditExportRow(TableRow, frozen=True, kw_only=True):
    state: str
    reason: str
    exported_sequence: Count


class ArchiveView(TableRow, frozen=True, kw_only=True):
    """How far this node's archive is, and what it waits for."""

    archive: str
    node: Small
    partitions: list[ArchiveRow]
    groups: list[ArchiveRow]
    audit: AuditExportRow | None


class BackupRow(TableRow, frozen=True, kw_only=True):
    """A point to go back to; all that was acknowledged before it is in it."""

    made_ms: Count
    verified: bool
    scheduled: bool


class BackupsView(TableRow, frozen=True, kw_only=True):
    """How the schedule of backups stands, and the newest of them as this node last saw them."""

    interval_seconds: Small
    keep_count: Small
    keep_days: Small
    carries_out: bool
    """Whether this node makes them: it leads the control plane."""
    state: str
    reason: str
    verified_ms: Count | None
    """When the newest one began that was verified."""
    age_seconds: Count
    due_ms: Count
    failures: Count
    without_streams: list[str]
    """Partitions of which the newest backup has no streams: a restore refuses them."""
    drilled_ms: Count | None
    """When a restore was last practised."""
    count: Small
    backups: list[BackupRow]


class FeedPartition(TableRow, frozen=True, kw_only=True):
    """A partition of the feed: which entries can be read here."""

    tenant: str
    number: Small
    partition: Small
    first: Count
    last: Count
    bytes: Count
    leader: Small | None
    refusal: str
    prgs: Small
    rings: list[Small]
    queue_messages_max: Small
    queue_bytes_max: Count
    dedupe_horizon_seconds: Small


class FeedDirectory(TableRow, frozen=True, kw_only=True):
    cluster: str
    partitions: list[FeedPartition]


class StreamPartitionRow(TableRow, frozen=True, kw_only=True):
    """One partition of a stream, as this node's replica has it."""

    partition: Small
    leader: Small | None
    start: Count
    next: Count
    file_bytes: Count


class StreamRow(TableRow, frozen=True, kw_only=True):
    """A stream: what it captures, how much it keeps."""

    name: str
    number: Small
    filters: list[str]
    retention_ms: Count
    retention_bytes: Count
    created_ms: Count


class StreamPage(TableRow, frozen=True, kw_only=True):
    items: list[StreamRow]
    after: str | None = None


class StreamInfo(StreamRow, frozen=True, kw_only=True):
    """A stream with its partitions."""

    partitions: list[StreamPartitionRow]


class StreamGone(TableRow, frozen=True, kw_only=True):
    name: str


class StreamRecord(TableRow, frozen=True, kw_only=True):
    """One message of a stream, whatever protocol brought it."""

    partition: Small
    offset: Count
    timestamp_ms: Count
    protocol: str
    address: str
    sender: str
    payload: Payload | None
    key: str | None = None
    headers: list[tuple[str, str]] = []
    content_type: str | None = None
    expires_at_ms: Count | None = None


class StreamRecords(TableRow, frozen=True, kw_only=True):
    """Messages from an offset on; `next` is where to go on."""

    items: list[StreamRecord]
    start: Count
    next: Count
