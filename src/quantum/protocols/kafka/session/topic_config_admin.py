"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: a key takes effect or is refused by name.

A broker's own settings are `quantum config`'s, and shown here with their values, read-only.
"""

from __future__ import annotations

from typing import Any, Final

from quantum.broker.streams.topic_configs import DEFAULTS, refuse_configs
from quantum.mesh.topic_views import TopicView
from quantum.protocols.kafka.codec import KafkaCode
from quantum.protocols.kafka.session.gathering import Gathering
from quantum.protocols.kafka.session.metadata import find_topic
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.protocols.kafka.session.topic_admin import may_manage, reply_code

_TOPIC: Final = 2
_BROKER: Final = 4
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_DYNAMIC_TOPIC: Final = 1
_STATIC_BROKER: Final = 4
_DEFAULT: Final = 5
_STRING, _LONG, _LIST = 2, 5, 7
_TYPES: Final = {"cleanup.policy": _LIST, "message.timestamp.type": _STRING}
_NUMBERS: Final = frozenset({"retention.ms", "retention.bytes", "max.message.bytes"})
_ONLY_TOPICS: Final = "only topics are changed here: a broker's settings are `quantum config`'s"


def on_describe_configs(request: KafkaRequest) -> None:
    results = [_described(request, each) for each in request.body.resources]
    request.answer({"results": results})


def _described(request: KafkaRequest, wanted: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "resource_type": wanted.resource_type,
        "resource_name": wanted.resource_name,
        "error_code": KafkaCode.none,
        "error_message": None,
        "configs": [],
    }
    keys = wanted.configuration_keys
    if wanted.resource_type == _BROKER:
        rows = _broker_rows(request)
    elif wanted.resource_type == _TOPIC:
        topic = find_topic(request, wanted.resource_name)
        if topic is None:
            return row | {"error_code": KafkaCode.unknown_topic_or_partition}
        rows = [_row(key, default, topic) for key, default in DEFAULTS.items()]
    else:
        return row | {"error_code": KafkaCode.invalid_request}
    return row | {"configs": [each for each in rows if keys is None or each["name"] in keys]}


def _row(key: str, default: str, topic: TopicView) -> dict[str, Any]:
    said = topic.configs.get(key)
    source = _DEFAULT if said is None else _DYNAMIC_TOPIC
    synonyms = [] if said is None else [{"name": key, "value": said, "source": _DYNAMIC_TOPIC}]
    synonyms.append({"name": key, "value": default, "source": _DEFAULT})
    return {
        "name": key,
        "value": default if said is None else said,
        "read_only": False,
        "config_source": source,
        "is_sensitive": False,
        "synonyms": synonyms,
        "config_type": _LONG if key in _NUMBERS else _TYPES.get(key, _STRING),
        "documentation": None,
    }


def _broker_rows(request: KafkaRequest) -> list[dict[str, Any]]:
    limits = request.node.limits
    said = {
        "auto.create.topics.enable": "true" if limits.creates_topics else "false",
        "num.partitions": str(limits.partitions_default),
        "fetch.max.bytes": str(limits.fetch_bytes_max),
        "socket.request.max.bytes": str(limits.produce_bytes_max),
        "connections.max.idle.ms": str(limits.idle_ms_max),
        "message.max.bytes": DEFAULTS["max.message.bytes"],
    }
    return [
        {
            "name": key,
            "value": value,
            "read_only": True,
            "config_source": _STATIC_BROKER,
            "is_sensitive": False,
            "synonyms": [],
            "config_type": _STRING,
            "documentation": None,
        }
        for key, value in said.items()
    ]


def on_alter_configs(request: KafkaRequest) -> None:
    """Put these configs in the place of all that a topic had."""

    def merged(_topic: TopicView, wanted: Any) -> dict[str, str] | str:
        if any(each.value is None for each in wanted.configs):
            return "a config without a value"
        return {each.name: each.value for each in wanted.configs}

    _alter(request, merged)


def on_incremental_alter_configs(request: KafkaRequest) -> None:
    """Change single configs, and leave the others as they were."""
    _alter(request, _merged)


def _merged(topic: TopicView, wanted: Any) -> dict[str, str] | str:
    configs = dict(topic.configs)
    if len({each.name for each in wanted.configs}) != len(wanted.configs):
        return "a config is named twice"
    for each in wanted.configs:
        if each.config_operation == _DELETE:
            configs.pop(each.name, None)
            if each.name not in DEFAULTS:
                return f"no such config of a topic here: {each.name}"
        elif each.config_operation == _SET and each.value is not None:
            configs[each.name] = each.value
        elif each.config_operation in {_APPEND, _SUBTRACT}:
            return f"no list that could be changed: {each.name}"
        else:
            return f"a config without a value: {each.name}"
    return configs


def _alter(request: KafkaRequest, merge: Any) -> None:
    body = request.body
    rows: list[dict[str, Any]] = []
    gathering = Gathering(lambda: request.answer({"responses": rows}))
    for wanted in body.resources:
        row: dict[str, Any] = {
            "resource_type": wanted.resource_type,
            "resource_name": wanted.resource_name,
            "error_code": KafkaCode.none,
            "error_message": None,
        }
        rows.append(row)
        _alter_one(request, wanted, row, gathering, merge)
    gathering.begin()


def _alter_one(
    request: KafkaRequest, wanted: Any, row: dict[str, Any], gathering: Gathering, merge: Any
) -> None:
    if wanted.resource_type != _TOPIC:
        row.update(error_code=KafkaCode.invalid_request, error_message=_ONLY_TOPICS)
        return
    topic = find_topic(request, wanted.resource_name)
    if topic is None:
        row["error_code"] = KafkaCode.unknown_topic_or_partition
        return
    if not may_manage(request, topic.name):
        row["error_code"] = KafkaCode.topic_authorization_failed
        return
    configs = merge(topic, wanted)
    reason = configs if isinstance(configs, str) else refuse_configs(configs.items())
    if reason:
        row.update(error_code=KafkaCode.invalid_config, error_message=reason)
        return
    if request.body.validate_only:
        return

    def done(reply: Any) -> None:
        row["error_code"] = reply_code(request, reply)
        row["error_message"] = None if reply is None or not reply.reason else reply.reason
        gathering.came()

    gathering.expect()
    request.tenant.topics.alter_topic(topic.name, tuple(configs.items()), done)
