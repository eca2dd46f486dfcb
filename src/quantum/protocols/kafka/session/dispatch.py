"""Which handler answers which request: one table, and the bounds around a handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from quantum.protocols.kafka.codec import (
    VERSIONS,
    ApiKey,
    RequestFault,
    UnsupportedRequest,
    answer_api_versions,
    decode_request,
    is_foreign_api_versions,
)
from quantum.protocols.kafka.session import (
    acl_admin,
    assigned_groups,
    cluster_requests,
    fetch,
    group_admin,
    group_requests,
    list_offsets,
    metadata,
    offset_requests,
    produce,
    quota_admin,
    scram_admin,
    topic_admin,
    topic_config_admin,
    transaction_admin,
    transaction_requests,
)
from quantum.protocols.kafka.session.request import KafkaRequest

RequestHandler = Callable[[KafkaRequest], None]


def on_api_versions(request: KafkaRequest) -> None:
    """Say what is spoken here; who asks in a version of the future is told in version 0."""
    head = request.head
    if not is_foreign_api_versions(head.api_key, head.api_version):
        request.body = decode_request(head, request.data)
    request.finish((answer_api_versions(head, hidden=HIDDEN),))


def _decoded(handler: RequestHandler) -> RequestHandler:
    def decode_first(request: KafkaRequest) -> None:
        request.body = decode_request(request.head, request.data)
        handler(request)

    return decode_first


_BY_SCHEMA: Final[Mapping[ApiKey, RequestHandler]] = {
    ApiKey.FETCH: fetch.on_fetch,
    ApiKey.LIST_OFFSETS: list_offsets.on_list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: list_offsets.on_offset_for_leader_epoch,
    ApiKey.METADATA: metadata.on_metadata,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: metadata.on_describe_topic_partitions,
    ApiKey.DESCRIBE_CLUSTER: cluster_requests.on_describe_cluster,
    ApiKey.FIND_COORDINATOR: cluster_requests.on_find_coordinator,
    ApiKey.DESCRIBE_LOG_DIRS: cluster_requests.on_describe_log_dirs,
    ApiKey.SASL_HANDSHAKE: lambda request: request.connection.on_sasl_handshake(request),
    ApiKey.SASL_AUTHENTICATE: lambda request: request.connection.on_sasl_message(request),
    ApiKey.CREATE_TOPICS: topic_admin.on_create_topics,
    ApiKey.DELETE_TOPICS: topic_admin.on_delete_topics,
    ApiKey.CREATE_PARTITIONS: topic_admin.on_create_partitions,
    ApiKey.DELETE_RECORDS: topic_admin.on_delete_records,
    ApiKey.DESCRIBE_CONFIGS: topic_config_admin.on_describe_configs,
    ApiKey.ALTER_CONFIGS: topic_config_admin.on_alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: topic_config_admin.on_incremental_alter_configs,
    ApiKey.JOIN_GROUP: group_requests.on_join_group,
    ApiKey.SYNC_GROUP: group_requests.on_sync_group,
    ApiKey.HEARTBEAT: group_requests.on_heartbeat,
    ApiKey.LEAVE_GROUP: group_requests.on_leave_group,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: assigned_groups.on_consumer_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: assigned_groups.on_consumer_group_describe,
    ApiKey.OFFSET_COMMIT: offset_requests.on_offset_commit,
    ApiKey.OFFSET_FETCH: offset_requests.on_offset_fetch,
    ApiKey.OFFSET_DELETE: offset_requests.on_offset_delete,
    ApiKey.DESCRIBE_GROUPS: group_admin.on_describe_groups,
    ApiKey.LIST_GROUPS: group_admin.on_list_groups,
    ApiKey.DELETE_GROUPS: group_admin.on_delete_groups,
    ApiKey.DESCRIBE_ACLS: acl_admin.on_describe_acls,
    ApiKey.CREATE_ACLS: acl_admin.on_create_acls,
    ApiKey.DELETE_ACLS: acl_admin.on_delete_acls,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: quota_admin.on_describe_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: quota_admin.on_alter_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: scram_admin.on_describe_users,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: scram_admin.on_alter_users,
    ApiKey.INIT_PRODUCER_ID: transaction_requests.on_init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: transaction_requests.on_add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: transaction_requests.on_add_offsets,
    ApiKey.END_TXN: transaction_requests.on_end,
    ApiKey.TXN_OFFSET_COMMIT: offset_requests.on_transaction_offset_commit,
    ApiKey.DESCRIBE_PRODUCERS: transaction_admin.on_describe_producers,
    ApiKey.DESCRIBE_TRANSACTIONS: transaction_admin.on_describe_transactions,
    ApiKey.LIST_TRANSACTIONS: transaction_admin.on_list_transactions,
}

HANDLERS: Final[Mapping[int, RequestHandler]] = MappingProxyType(
    {
        ApiKey.API_VERSIONS: on_api_versions,
        ApiKey.PRODUCE: produce.on_produce,
        **{key: _decoded(handler) for key, handler in _BY_SCHEMA.items()},
    }
)
_NEED_NO_TOPICS: Final = frozenset(
    {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
)
_MOVE_RECORDS: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
_READY_MS_MAX: Final = 5_000
_READY_PAUSE_MS: Final = 20
HIDDEN: Final = frozenset(key for key in VERSIONS if key not in HANDLERS)
"""What is not served: ApiVersions leaves it out, and who asks for it is cut off."""


def begin(request: KafkaRequest) -> None:
    """Let a request's handler begin with it. Raises RequestFault where no answer has a shape."""
    handler = HANDLERS.get(request.head.api_key)
    if handler is None:
        raise UnsupportedRequest(request.head.api_key, request.head.api_version)
    if _may_begin(request):
        handler(request)
    else:
        request.connection.hold_behind(request)
        _BeginLater(request, handler).wait()


def _may_begin(request: KafkaRequest) -> bool:
    """Say whether this node knows the catalogue well enough for a request.

    One that moves records needs no more than to have known it once since the start: a topic that
    is newer than that is denied with a code after which clients ask again.
    """
    key, topics = request.head.api_key, request.tenant.topics
    if key in _NEED_NO_TOPICS:
        return True
    return topics.was_ready() if key in _MOVE_RECORDS else topics.is_ready()


class _BeginLater:
    """A request to a node that does not know the catalogue yet: it would deny topics there are.

    What its client sent behind it waits too: a batch that began earlier than the one before it
    would be refused as out of order, which ends an idempotent producer for good.
    """

    def __init__(self, request: KafkaRequest, handler: RequestHandler) -> None:
        self._request = request
        self._handler = handler
        self._last_ms = request.node.tick_ms + _READY_MS_MAX

    def wait(self) -> None:
        node = self._request.node
        node.at(node.tick_ms + _READY_PAUSE_MS, self)

    @property
    def is_over(self) -> bool:
        return self._request.is_over

    def due(self) -> None:
        request = self._request
        if not _may_begin(request) and request.node.tick_ms < self._last_ms:
            self.wait()
            return
        try:
            self._handler(request)
        except RequestFault as fault:
            request.connection.fail(fault)
        else:
            request.connection.begun(request)
