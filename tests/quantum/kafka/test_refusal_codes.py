"""Every refusal of a stream machine has a code, and each version the one that it knows."""

from __future__ import annotations

import itertools

import pytest

from quantum.broker.streams import StreamRefusal
from quantum.protocols.kafka.codec import VERSIONS, ApiKey, KafkaCode
from quantum.protocols.kafka.requests import CODE_OF_REFUSAL, code_of

R = StreamRefusal


def test_every_refusal_has_its_code_in_every_api() -> None:
    assert set(CODE_OF_REFUSAL) == set(StreamRefusal)
    for refusal, (key, row) in itertools.product(StreamRefusal, VERSIONS.items()):
        for version in (row.first, row.last):
            assert code_of(refusal, key, version) is not KafkaCode.none
    assert code_of(None, ApiKey.PRODUCE, 0) is KafkaCode.none


@pytest.mark.parametrize(
    ("refusal", "key", "version", "code"),
    [
        (R.FENCED, ApiKey.END_TXN, 1, KafkaCode.invalid_producer_epoch),
        (R.FENCED, ApiKey.END_TXN, 2, KafkaCode.producer_fenced),
        (R.FENCED, ApiKey.INIT_PRODUCER_ID, 3, KafkaCode.invalid_producer_epoch),
        (R.FENCED, ApiKey.INIT_PRODUCER_ID, 4, KafkaCode.producer_fenced),
        (R.TRANSACTION_NOT_OPEN, ApiKey.PRODUCE, 11, KafkaCode.invalid_txn_state),
        (R.TRANSACTION_NOT_OPEN, ApiKey.PRODUCE, 12, KafkaCode.transaction_abortable),
        (R.TRANSACTION_NOT_OPEN, ApiKey.TXN_OFFSET_COMMIT, 5, KafkaCode.transaction_abortable),
        (R.STALE_MEMBER_EPOCH, ApiKey.OFFSET_COMMIT, 9, KafkaCode.stale_member_epoch),
        (R.STALE_MEMBER_EPOCH, ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, KafkaCode.fenced_member_epoch),
    ],
)
def test_each_version_is_told_what_it_knows(
    refusal: StreamRefusal, key: ApiKey, version: int, code: KafkaCode
) -> None:
    assert code_of(refusal, key, version) is code
