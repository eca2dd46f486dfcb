"""DescribeClientQuotas, AlterClientQuotas: the rate of the tenant's produced bytes.

There is one entity, the default `user`: all users of the tenant together, on each node. Its
`producer_byte_rate` is the tenant's setting `rates.publish_bytes`, which holds for the publishes of
every protocol; who is too fast hears `throttle_time_ms` and is not read for as long.
"""

from __future__ import annotations

from typing import Any, Final

from quantum.protocols.kafka.codec import KafkaCode
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.protocols.kafka.session.tenant_changes import (
    Refusal,
    asker_of,
    records_for,
    refusal_of,
)
from quantum.tenancy import Operation
from quantum.tenants.tenant_records import ChangeRefused, Document

_USER: Final = "user"
_KEY: Final = "producer_byte_rate"
_SETTING: Final = "rates.publish_bytes"
_EXACT, _DEFAULT = 0, 1
_RATE_MAX: Final = 2**53 - 1
_GOOD: Final[Refusal] = (KafkaCode.none, None)
_ENTITY: Final = {"entity_type": _USER, "entity_name": None}


def on_describe_quotas(request: KafkaRequest) -> None:
    """Say what holds for the entities that a filter is about: there is one, if it has a quota."""
    records = records_for(request, Operation.MANAGE)
    if isinstance(records, tuple):
        code, words = records
        request.answer({"error_code": code, "error_message": words, "entries": None})
        return
    rate = records.document(request.tenant.name).get(_SETTING)
    suits = _suits(request.body.components, is_strict=request.body.strict)
    values = [{"key": _KEY, "value": float(rate)}] if isinstance(rate, int) and rate else []
    entries = [{"entity": [_ENTITY], "values": values}] if suits and values else []
    request.answer({"error_code": KafkaCode.none, "error_message": None, "entries": entries})


def _suits(components: Any, *, is_strict: bool) -> bool:
    """Say whether the default user is among what is asked for."""
    if any(each.entity_type != _USER for each in components):
        return False
    if not components:
        return not is_strict
    return all(each.match_type != _EXACT for each in components)


def on_alter_quotas(request: KafkaRequest) -> None:
    """Set or remove the rate. What has no counterpart is refused, and nothing of its entry done."""
    body = request.body
    told = [_refuse_entry(each) for each in body.entries]

    def settled(refusal: Refusal) -> None:
        rows = [
            {
                **dict(zip(("error_code", "error_message"), each or refusal, strict=True)),
                "entity": [
                    {"entity_type": part.entity_type, "entity_name": part.entity_name}
                    for part in entry.entity
                ],
            }
            for entry, each in zip(entries, told, strict=True)
        ]
        request.answer({"entries": rows})

    def change(document: Document) -> Document:
        wanted = dict(document)
        for entry, refusal in zip(entries, told, strict=True):
            for op in entry.ops if refusal is None else ():
                wanted.pop(_SETTING, None)
                if not op.remove:
                    wanted[_SETTING] = int(op.value)
        return wanted

    def done(refused: ChangeRefused | None) -> None:
        settled(_GOOD if refused is None else refusal_of(refused))

    entries = body.entries  # an answer forgets its request's body
    records = records_for(request, Operation.MANAGE)
    if isinstance(records, tuple):
        settled(records)
    elif body.validate_only or all(told):
        settled(_GOOD)
    else:
        records.change_document(asker_of(request), request.tenant.name, change, done)


def _refuse_entry(entry: Any) -> Refusal | None:
    named = [(each.entity_type, each.entity_name) for each in entry.entity]
    if named != [(_USER, None)]:
        words = "quotas are of the tenant: the entity is the default user, and no other"
        return KafkaCode.invalid_request, words
    for op in entry.ops:
        if op.key != _KEY:
            return KafkaCode.invalid_request, f"there is no quota {op.key}: {_KEY} there is"
        if not op.remove and not 1 <= op.value <= _RATE_MAX:  # also what is no number
            return KafkaCode.invalid_request, f"{_KEY} is from 1 to {_RATE_MAX} bytes a second"
    return None
