"""ListOffsets and OffsetForLeaderEpoch: where a partition begins, ends, and was at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from quantum.mesh.topic_views import PartitionView, TimeOutcome, TopicView
from quantum.model.records import RecordProtocol
from quantum.protocols.kafka.codec import KafkaCode, offset_for_time
from quantum.protocols.kafka.session.gathering import Gathering
from quantum.protocols.kafka.session.metadata import find_topic
from quantum.protocols.kafka.session.request import KafkaRequest

_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_READ_COMMITTED: Final = 1
_UNKNOWN: Final = -1


def judge_partition(
    request: KafkaRequest, name: str, p: int, epoch: int = _UNKNOWN
) -> tuple[KafkaCode, TopicView | None, PartitionView | None]:
    """Find a partition that is led here and that the client may know of, or say why not."""
    topic = find_topic(request, name)
    if topic is None or not 0 <= p < topic.partitions:
        return KafkaCode.unknown_topic_or_partition, None, None
    leader = request.tenant.topics.leader(topic.prgs[p])
    view = request.tenant.topics.partition(topic, p)
    if not leader.is_here or view is None:
        return KafkaCode.not_leader_or_follower, None, None
    if epoch not in {_UNKNOWN, leader.epoch}:
        older = epoch < leader.epoch
        code = KafkaCode.fenced_leader_epoch if older else KafkaCode.unknown_leader_epoch
        return code, None, None
    return KafkaCode.none, topic, view


def on_list_offsets(request: KafkaRequest) -> None:
    """Answer for each partition; times may have to be looked for."""
    body = request.body
    committed = getattr(body, "isolation_level", 0) == _READ_COMMITTED
    topics: list[dict[str, Any]] = []
    gathering = Gathering(lambda: request.answer({"topics": topics}))
    for each in body.topics:
        rows: list[dict[str, Any]] = []
        topics.append({"name": each.name, "partitions": rows})
        for wanted in each.partitions:
            row: dict[str, Any] = {"partition_index": wanted.partition_index}
            rows.append(row)
            _look_up(request, each.name, wanted, row, gathering, committed=committed)
    gathering.begin()


def _look_up(
    request: KafkaRequest,
    name: str,
    wanted: Any,
    row: dict[str, Any],
    gathering: Gathering,
    *,
    committed: bool,
) -> None:
    p, asked = wanted.partition_index, wanted.timestamp
    code, topic, view = judge_partition(
        request, name, p, getattr(wanted, "current_leader_epoch", _UNKNOWN)
    )
    row.update(error_code=code, timestamp=_UNKNOWN, offset=_UNKNOWN, leader_epoch=_UNKNOWN)
    if topic is None or view is None:
        return
    row["leader_epoch"] = view.leader_epoch
    if asked == _LATEST:
        row["offset"] = view.last_stable if committed else view.high_watermark
    elif asked in {_EARLIEST, _EARLIEST_LOCAL}:
        row["offset"] = view.start
    elif asked == _MAX_TIMESTAMP:
        _newest(view, row)
    elif asked == _LATEST_TIERED:
        row["leader_epoch"] = _UNKNOWN
    elif asked < 0:
        row["error_code"] = KafkaCode.unsupported_version
    else:
        gathering.expect()
        end = view.last_stable if committed else view.high_watermark
        request.tenant.topics.find_time(
            topic, p, asked, _found(request, row, asked, end, gathering)
        )


def _newest(view: PartitionView, row: dict[str, Any]) -> None:
    if view.max_timestamp_ms >= 0 and view.high_watermark > view.start:
        row["timestamp"] = view.max_timestamp_ms
        row["offset"] = max(view.start, view.max_timestamp_offset)


def _found(
    request: KafkaRequest, row: dict[str, Any], since_ms: int, end: int, gathering: Gathering
) -> Callable[[TimeOutcome], None]:
    def found(outcome: TimeOutcome) -> None:
        batch = outcome.batch
        if outcome.refusal is not None:
            row["error_code"] = request.code(outcome.refusal)
        elif batch is not None and batch.base_offset < end:
            place: tuple[int, int] | None = (batch.base_offset, batch.timestamp_ms)
            if batch.protocol is RecordProtocol.KAFKA:
                place = offset_for_time(batch.data, since_ms)
            if place is not None:
                row["offset"], row["timestamp"] = place
        gathering.came()

    return found


def on_offset_for_leader_epoch(request: KafkaRequest) -> None:
    """Say where an epoch ended: a client that was ahead of it finds where to go on."""
    topics = []
    for each in request.body.topics:
        rows = []
        for wanted in each.partitions:
            p = wanted.partition
            code, topic, view = judge_partition(request, each.topic, p, wanted.current_leader_epoch)
            epoch, end = _UNKNOWN, _UNKNOWN
            if topic is not None and view is not None:
                epoch, end = _epoch_end(request, topic, p, view, wanted.leader_epoch)
            row = {"error_code": code, "partition": p, "leader_epoch": epoch, "end_offset": end}
            rows.append(row)
        topics.append({"topic": each.topic, "partitions": rows})
    request.answer({"topics": topics})


def _epoch_end(
    request: KafkaRequest, topic: TopicView, p: int, view: PartitionView, asked: int
) -> tuple[int, int]:
    """Return an epoch and where it ended.

    A leader that appended nothing ended where the next began: no batch of it is here, and a client
    that is told 'unknown' takes its log for truncated.
    """
    topics = request.tenant.topics
    epoch, end = topics.epoch_end(topic, p, asked)
    if epoch == _UNKNOWN and asked <= topics.leader(topic.prgs[p]).epoch:
        return asked, view.start
    return epoch, end
