"""Which APIs are spoken, in which versions: the one table that ApiVersions answers from."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from quantum.protocols.kafka.codec.errors import UnsupportedRequest


class ApiKey(IntEnum):
    """The numbers of the APIs, with the names of the protocol."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    DESCRIBE_TOPIC_PARTITIONS = 75


class ApiVersions(NamedTuple):
    """The versions of one API.

    `first` to `last` is what ApiVersions advertises; below `served_from` a request is read only to
    be refused in its own shape. From `flexible_from` on, lengths are compact and tags follow.
    """

    first: int
    last: int
    flexible_from: int
    served_from: int


NEVER_FLEXIBLE: Final = 1 << 15


def _row(first: int, last: int, flexible_from: int, served_from: int | None = None) -> ApiVersions:
    return ApiVersions(first, last, flexible_from, first if served_from is None else served_from)


VERSIONS: Final[Mapping[ApiKey, ApiVersions]] = MappingProxyType(
    {
        # Advertised from 0 for older librdkafka (its issue 4956); 2.16 was seen to do without.
        ApiKey.PRODUCE: _row(0, 12, 9, served_from=3),
        ApiKey.FETCH: _row(4, 16, 12),
        ApiKey.LIST_OFFSETS: _row(1, 8, 6),
        ApiKey.METADATA: _row(0, 13, 9),
        ApiKey.OFFSET_COMMIT: _row(2, 9, 8),
        ApiKey.OFFSET_FETCH: _row(1, 9, 6),
        ApiKey.FIND_COORDINATOR: _row(0, 5, 3),
        ApiKey.JOIN_GROUP: _row(0, 9, 6),
        ApiKey.HEARTBEAT: _row(0, 4, 4),
        ApiKey.LEAVE_GROUP: _row(0, 5, 4),
        ApiKey.SYNC_GROUP: _row(0, 5, 4),
        ApiKey.DESCRIBE_GROUPS: _row(0, 6, 5),
        ApiKey.LIST_GROUPS: _row(0, 5, 3),
        ApiKey.SASL_HANDSHAKE: _row(0, 1, NEVER_FLEXIBLE),
        ApiKey.API_VERSIONS: _row(0, 4, 3),
        ApiKey.CREATE_TOPICS: _row(2, 7, 5),
        ApiKey.DELETE_TOPICS: _row(1, 6, 4),
        ApiKey.DELETE_RECORDS: _row(0, 2, 2),
        ApiKey.INIT_PRODUCER_ID: _row(0, 5, 2),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: _row(2, 4, 4),
        ApiKey.ADD_PARTITIONS_TO_TXN: _row(0, 3, 3),
        ApiKey.ADD_OFFSETS_TO_TXN: _row(0, 4, 3),
        ApiKey.END_TXN: _row(0, 5, 3),
        ApiKey.TXN_OFFSET_COMMIT: _row(0, 5, 3),
        ApiKey.DESCRIBE_ACLS: _row(1, 3, 2),
        ApiKey.CREATE_ACLS: _row(1, 3, 2),
        ApiKey.DELETE_ACLS: _row(1, 3, 2),
        ApiKey.DESCRIBE_CONFIGS: _row(1, 4, 4),
        ApiKey.ALTER_CONFIGS: _row(0, 2, 2),
        ApiKey.DESCRIBE_LOG_DIRS: _row(1, 4, 2),
        ApiKey.SASL_AUTHENTICATE: _row(0, 2, 2),
        ApiKey.CREATE_PARTITIONS: _row(0, 3, 2),
        ApiKey.DELETE_GROUPS: _row(0, 2, 2),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: _row(0, 1, 1),
        ApiKey.OFFSET_DELETE: _row(0, 0, NEVER_FLEXIBLE),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: _row(0, 1, 1),
        ApiKey.ALTER_CLIENT_QUOTAS: _row(0, 1, 1),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _row(0, 0, 0),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _row(0, 0, 0),
        ApiKey.DESCRIBE_CLUSTER: _row(0, 1, 0),
        ApiKey.DESCRIBE_PRODUCERS: _row(0, 0, 0),
        ApiKey.DESCRIBE_TRANSACTIONS: _row(0, 0, 0),
        ApiKey.LIST_TRANSACTIONS: _row(0, 1, 0),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: _row(0, 1, 0),
        ApiKey.CONSUMER_GROUP_DESCRIBE: _row(0, 1, 0),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: _row(0, 0, 0),
    }
)

FINALIZED_FEATURES: Final[Mapping[str, int]] = MappingProxyType(
    {"transaction.version": 2, "group.version": 1}
)
"""What clients of KIP-890 and KIP-848 look for, each with its level."""


def versions_of(api_key: int, api_version: int) -> ApiVersions:
    """Return the row of a request. Raises UnsupportedRequest where it has none."""
    try:
        row = VERSIONS[ApiKey(api_key)]
    except (ValueError, KeyError):
        raise UnsupportedRequest(api_key, api_version) from None
    if not row.first <= api_version <= row.last:
        raise UnsupportedRequest(api_key, api_version)
    return row
