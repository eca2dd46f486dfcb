"""DescribeAcls, CreateAcls, DeleteAcls: the tenant's own access list, as Kafka's tools see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from quantum.protocols.kafka.codec import KafkaCode
from quantum.protocols.kafka.session.acl_words import (
    AclEntry,
    AclEntryRefused,
    entry_of,
    rule_of,
    suits,
)
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.protocols.kafka.session.tenant_changes import (
    Refusal,
    asker_of,
    records_for,
    refusal_of,
)
from quantum.tenancy import Operation
from quantum.tenants.tenant_records import AccessRules, ChangeRefused, TenantRecords

_LITERAL: Final = 3
_GOOD: Final[Refusal] = (KafkaCode.none, None)
_NO_LIST: Final[Refusal] = (
    KafkaCode.security_disabled,
    "the control plane has no access list of this tenant: begin one with set-acls",
)


def _records_with_list(request: KafkaRequest) -> TenantRecords | Refusal:
    """Return the records of a tenant that has a list; by one entry none is begun.

    A tenant without a list allows everything, to clients of every protocol: its first rule would
    shut all others out.
    """
    records = records_for(request, Operation.MANAGE)
    if isinstance(records, tuple) or records.rules(request.tenant.name) is not None:
        return records
    return _NO_LIST


def on_describe_acls(request: KafkaRequest) -> None:
    records = _records_with_list(request)
    if isinstance(records, tuple):
        code, words = records
        request.answer({"error_code": code, "error_message": words, "resources": []})
        return
    wanted = _filter(request.body)
    by_resource: dict[tuple[object, ...], dict[str, Any]] = {}
    for entry in _entries(records.rules(request.tenant.name) or ()):
        if suits(entry, wanted):
            key = (entry.resource, entry.name, entry.pattern)
            row = by_resource.setdefault(key, entry.resource_facts() | {"acls": []})
            row["acls"].append(entry.facts())
    rows = list(by_resource.values())
    request.answer({"error_code": KafkaCode.none, "error_message": None, "resources": rows})


def _entries(rules: AccessRules) -> list[AclEntry]:
    return list(dict.fromkeys(entry for each in rules if (entry := entry_of(each)) is not None))


def _filter(body: Any) -> AclEntry:
    """Read a filter; before version 1 of the API there were literal names alone."""
    return AclEntry(
        *(body.resource_type_filter, body.resource_name_filter),
        getattr(body, "pattern_type_filter", _LITERAL),
        *(body.principal_filter, body.host_filter, body.operation, body.permission_type),
    )


def on_create_acls(request: KafkaRequest) -> None:
    """Add rules: all that can be said, in one change of the list."""
    told = [_GOOD] * len(request.body.creations)
    rules = []
    for nth, each in enumerate(request.body.creations):
        entry = AclEntry(
            *(each.resource_type, each.resource_name),
            getattr(each, "resource_pattern_type", _LITERAL),
            *(each.principal, each.host, each.operation, each.permission_type),
        )
        try:
            rules.append(rule_of(entry))
        except AclEntryRefused as refused:
            told[nth] = KafkaCode.invalid_request, str(refused)

    def settled(refusal: Refusal) -> None:
        rows = [refusal if each == _GOOD else each for each in told]
        request.answer({"results": _told_rows(rows)})

    def change(stands: AccessRules) -> AccessRules:
        return (*stands, *(each for each in dict.fromkeys(rules) if each not in stands))

    def done(refused: ChangeRefused | None) -> None:
        settled(_GOOD if refused is None else refusal_of(refused))

    records = _records_with_list(request)
    if isinstance(records, tuple):
        settled(records)
    elif rules:
        records.change_rules(asker_of(request), request.tenant.name, change, done)
    else:
        settled(_GOOD)


def _told_rows(told: Sequence[Refusal]) -> list[dict[str, Any]]:
    return [{"error_code": code, "error_message": words} for code, words in told]


def on_delete_acls(request: KafkaRequest) -> None:
    """Take rules away that filters are about; each is told what it took."""
    wanted = [_filter(each) for each in request.body.filters]
    taken: list[list[AclEntry]] = [[] for _ in wanted]

    def change(stands: AccessRules) -> AccessRules:
        for each, filter_ in zip(taken, wanted, strict=True):
            each[:] = [entry for entry in _entries(stands) if suits(entry, filter_)]
        gone = {entry for each in taken for entry in each}
        return tuple(each for each in stands if entry_of(each) not in gone)

    def settled(refusal: Refusal) -> None:
        code, words = refusal
        rows = []
        for entries in taken:
            shown = [each.facts() | _told_rows([_GOOD])[0] for each in entries]
            matching = shown if code is KafkaCode.none else []
            rows.append({"error_code": code, "error_message": words, "matching_acls": matching})
        request.answer({"filter_results": rows})

    def done(refused: ChangeRefused | None) -> None:
        settled(_GOOD if refused is None else refusal_of(refused))

    records = _records_with_list(request)
    if isinstance(records, tuple):
        settled(records)
    else:
        records.change_rules(asker_of(request), request.tenant.name, change, done)
