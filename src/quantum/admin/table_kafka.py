"""Pages of Kafka: topics with their partitions, consumer groups with their members and lags."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from clustor.control import AccessRole
from quantum.admin import kafka_pages as k
from quantum.admin.listings import AFTER, LIMIT, TENANT
from quantum.admin.routes import OPERATORS, TENANT_READERS, Parameter, page
from quantum.node import kafka_rows as w

_OWNERS: Final = OPERATORS | {AccessRole.TENANT_ADMIN}
_BEHIND: Final = Parameter(
    "after", Annotated[str, msgspec.Meta(max_length=4096)] | None, AFTER.about, default=None
)
_TENANT: Final[dict[str, Any]] = {"kinds": TENANT, "own_tenant": True, "is_local": True}
_LOOK: Final[dict[str, Any]] = {**_TENANT, "roles": TENANT_READERS}
_TOPIC: Final[dict[str, Any]] = {**_LOOK, "kinds": {**TENANT, "topic": k.TopicName}}
_GROUP: Final[dict[str, Any]] = {**_LOOK, "kinds": {**TENANT, "group": k.GroupName}}
_ORDER: Final[dict[str, Any]] = {"roles": _OWNERS, "method": "POST"}
_TOPICS: Final = "/v1/tenants/{tenant_id}/kafka/topics"
_GROUPS: Final = "/v1/tenants/{tenant_id}/kafka/groups"

KAFKA: Final = (
    page(
        _TOPICS,
        k.topics,
        w.KafkaTopicPage,
        "kafka-topics list",
        "List the Kafka topics of a tenant.",
        query=(LIMIT, _BEHIND),
        columns=("name", "kind", "partition_count", "records", "file_bytes"),
        example="acme",
        **_LOOK,
    ),
    page(
        _TOPICS,
        k.create,
        w.KafkaDone,
        "kafka-topics create",
        "Make a Kafka topic; answered when every partition of the tenant has it.",
        body=k.CreateTopicBody,
        example='acme --name orders --partition-count 6 --configs \'{"retention.ms": "-1"}\'',
        **{**_TENANT, **_ORDER},
    ),
    page(
        _TOPICS + "/{topic}",
        k.topic,
        w.KafkaTopicInfo,
        "kafka-topics show",
        "Show a Kafka topic: who leads its partitions, where they begin and end.",
        example="acme orders",
        **_TOPIC,
    ),
    page(
        _TOPICS + "/{topic}/delete",
        k.delete,
        w.KafkaDone,
        "kafka-topics delete",
        "End a Kafka topic with all that it holds.",
        body=k.DeleteTopicBody,
        example="acme orders",
        **{**_TOPIC, **_ORDER},
    ),
    page(
        _GROUPS,
        k.groups,
        w.KafkaGroupPage,
        "kafka-groups list",
        "List the consumer groups of a tenant, and how far each is behind.",
        query=(LIMIT, _BEHIND),
        columns=("name", "state", "member_count", "lag", "coordinator"),
        example="acme",
        **_LOOK,
    ),
    page(
        _GROUPS + "/{group}",
        k.group,
        w.KafkaGroupInfo,
        "kafka-groups show",
        "Show a consumer group: its members, and how far it is in each partition.",
        example="acme billing",
        **_GROUP,
    ),
    page(
        _GROUPS + "/{group}/why",
        k.group_why,
        w.KafkaGroupWhy,
        "kafka-groups why",
        "Say why a consumer group is behind.",
        example="acme billing",
        **_GROUP,
    ),
    page(
        _GROUPS + "/{group}/delete",
        k.delete_group,
        w.KafkaDone,
        "kafka-groups delete",
        "Forget a consumer group without members, and all that it committed.",
        body=k.DeleteGroupBody,
        example="acme billing",
        **{**_GROUP, **_ORDER},
    ),
)
