"""The one table from what stream machines refuse to what a Kafka client is told."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from quantum.broker.streams import StreamRefusal
from quantum.protocols.kafka.codec import ApiKey, KafkaCode

_R = StreamRefusal

CODE_OF_REFUSAL: Final[Mapping[StreamRefusal, KafkaCode]] = MappingProxyType(
    {
        _R.OUT_OF_ORDER_SEQUENCE: KafkaCode.out_of_order_sequence_number,
        _R.STALE_EPOCH: KafkaCode.invalid_producer_epoch,
        _R.TRANSACTION_NOT_OPEN: KafkaCode.invalid_txn_state,
        _R.WRONG_TRANSACTION_STATE: KafkaCode.invalid_txn_state,
        _R.FENCED: KafkaCode.producer_fenced,
        _R.UNKNOWN_PRODUCER: KafkaCode.invalid_producer_id_mapping,
        _R.TRANSACTION_ENDING: KafkaCode.concurrent_transactions,
        _R.BAD_TIMEOUT: KafkaCode.invalid_transaction_timeout,
        _R.UNKNOWN_MEMBER: KafkaCode.unknown_member_id,
        _R.STALE_GENERATION: KafkaCode.illegal_generation,
        _R.REBALANCING: KafkaCode.rebalance_in_progress,
        _R.INCONSISTENT_PROTOCOL: KafkaCode.inconsistent_group_protocol,
        _R.MEMBER_ID_REQUIRED: KafkaCode.member_id_required,
        _R.FENCED_INSTANCE: KafkaCode.fenced_instance_id,
        _R.GROUP_FULL: KafkaCode.group_max_size_reached,
        _R.GROUP_NOT_EMPTY: KafkaCode.non_empty_group,
        _R.GROUP_UNKNOWN: KafkaCode.group_id_not_found,
        _R.METADATA_TOO_LARGE: KafkaCode.offset_metadata_too_large,
        _R.SUBSCRIBED: KafkaCode.group_subscribed_to_topic,
        _R.STALE_MEMBER_EPOCH: KafkaCode.fenced_member_epoch,
        _R.UNSTABLE_OFFSETS: KafkaCode.unstable_offset_commit,
        _R.UNRELEASED_INSTANCE: KafkaCode.unreleased_instance_id,
        _R.UNKNOWN_ASSIGNOR: KafkaCode.unsupported_assignor,
        _R.WRONG_GROUP_KIND: KafkaCode.group_id_not_found,
        _R.TOPIC_UNKNOWN: KafkaCode.unknown_topic_or_partition,
        _R.TOPIC_EXISTS: KafkaCode.topic_already_exists,
        _R.BAD_TOPIC_NAME: KafkaCode.invalid_topic_exception,
        _R.BAD_PARTITIONS: KafkaCode.invalid_partitions,
        _R.TOO_MANY_PARTITIONS: KafkaCode.policy_violation,
        _R.BAD_CONFIG: KafkaCode.invalid_config,
        _R.BAD_BATCH: KafkaCode.invalid_record,
        _R.BUSY: KafkaCode.coordinator_load_in_progress,
        _R.NOT_COORDINATOR: KafkaCode.not_coordinator,
        _R.OFFSET_OUT_OF_RANGE: KafkaCode.offset_out_of_range,
        _R.NOT_LEADER: KafkaCode.not_leader_or_follower,
    }
)

_FENCED_SINCE: Final = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""The first versions whose clients know PRODUCER_FENCED; others know the epoch's code alone."""

_ABORTABLE_SINCE: Final = {ApiKey.PRODUCE: 12, ApiKey.TXN_OFFSET_COMMIT: 5}
"""The first versions whose clients abort by themselves what is not open any more (KIP-890)."""


def code_of(refusal: StreamRefusal | None, api_key: int, api_version: int) -> KafkaCode:
    """Return what a client of this API and version is told; `none` where nothing was refused."""
    if refusal is None:
        return KafkaCode.none
    if refusal is StreamRefusal.FENCED:
        since = _FENCED_SINCE.get(ApiKey(api_key), 0)
        if api_version < since:
            return KafkaCode.invalid_producer_epoch
    if refusal is StreamRefusal.TRANSACTION_NOT_OPEN:
        since = _ABORTABLE_SINCE.get(ApiKey(api_key), api_version + 1)
        if api_version >= since:
            return KafkaCode.transaction_abortable
    if refusal is StreamRefusal.STALE_MEMBER_EPOCH and api_key == ApiKey.OFFSET_COMMIT:
        return KafkaCode.stale_member_epoch
    return CODE_OF_REFUSAL[refusal]
