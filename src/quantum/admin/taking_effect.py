"""What brokers do with a change that the control plane takes, and what they could not do.

The control plane knows neither topics nor a broker's settings: what no broker could carry out is
refused here, before it is written down, and the answer says when each part takes effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from clustor.control import (
    ConfigHead,
    ConfigVersion,
    QuotaPolicy,
    ScopeKind,
    SetAcls,
    SetConfiguration,
    SetQuotas,
    SettingScope,
    find,
)
from clustor.control.types import Count, Name
from quantum.admin.errors import conflict, malformed, not_found
from quantum.admin.routes import AdminRequest
from quantum.config.live import SET, USER_PREFIX, Takes, effects, mistakes
from quantum.tenancy import QUOTA_MAXIMA
from quantum.tenants.control_words import rule_mistakes

_MADE_WITH: Final = frozenset({"offline_queue_bytes_max", "offline_queue_messages_max"})
"""How committed entries are applied: a tenant keeps what it was made with."""
_GRACEFUL: Final = frozenset(
    {
        "connections_max",
        "retained_bytes_max",
        "session_store_bytes_max",
        "subscription_filters_max",
        "shared_groups_max",
    }
)
_GRACE: Final = "overage_grace_ms"
_NAMES: Final = frozenset(QuotaPolicy.__struct_fields__) - {"tenant_id", "version"}


class ChangeQuotasBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Quotas to change; those that are not named stay."""

    quotas: dict[Name, Count]
    expected_version: Count | None = None


def change_quotas(asked: AdminRequest) -> SetQuotas:
    """Lay the named quotas over those that stand; the version keeps two changes from mixing."""
    tenant, wanted = asked.values["tenant_id"], asked.body.expected_version
    held = find(asked.store, QuotaPolicy, tenant)
    if held is None:
        raise not_found("there is no such tenant", tenant_id=tenant)
    if wanted not in (None, held.version):
        raise conflict("another version stands", version=held.version)
    stands = {name: getattr(held, name) for name in _NAMES}
    if not held.version:  # nobody set any yet: what holds is what the broker's own file says
        stands |= asked.quotas_in_force(tenant)
    quotas = stands | dict(asked.body.quotas)
    return SetQuotas(tenant_id=tenant, expected_version=held.version, quotas=quotas)


def check_quotas(command: SetQuotas) -> None:
    """Refuse what no broker could take; the control plane knows its own bounds."""
    most = QUOTA_MAXIMA.overage_grace_ms
    if command.quotas.get(_GRACE, 0) > most:
        raise malformed(f"{_GRACE} is {most} at most")


def check_rules(command: SetAcls) -> None:
    """Refuse rules that cannot be read."""
    found = list(rule_mistakes(command.rules))
    if found:
        raise malformed("; ".join(found))


def set_configuration(asked: AdminRequest) -> SetConfiguration:
    """Take a document; a password that only says that it is set stays what it is.

    Documents are read with their passwords veiled, and written whole: who changes something else
    sends the veil back.
    """
    body = asked.body
    kept = [key for key, value in body.document.items() if _is_veil(key, value)]
    document = dict(body.document)
    if kept:
        held = _document(asked, body.scope, body.expected_version)
        for key in kept:
            if key not in held:
                raise malformed("no such user has a password: give its hash", key=key)
            document[key] = held[key]
    members = {name: getattr(body, name) for name in body.__struct_fields__}
    return SetConfiguration(**members | {"document": document})


def _is_veil(key: str, value: object) -> bool:
    return key.startswith(USER_PREFIX) and value == SET


def _document(asked: AdminRequest, scope: SettingScope, version: int) -> Mapping[str, object]:
    """Return the document that stands, which must be the version that the caller has read."""
    head = find(asked.store, ConfigHead, scope.kind.value, scope.name)
    stands = 0 if head is None else head.version
    if stands != version:
        raise conflict("another version stands", version=stands)
    held = find(asked.store, ConfigVersion, scope.kind.value, scope.name, version)
    return {} if held is None else held.document


def check_configuration(command: SetConfiguration) -> None:
    """Refuse values that no broker could take."""
    found = mistakes(command.document)
    if found:
        raise malformed("; ".join(found))


def configuration_effects(command: SetConfiguration, _asked: AdminRequest) -> Mapping[str, object]:
    """Say when brokers take each key up."""
    of_tenant = command.scope.kind is ScopeKind.TENANT
    return {"takes_effect": effects(command.document, of_tenant=of_tenant)}


def quota_effects(command: SetQuotas, asked: AdminRequest) -> Mapping[str, object]:
    """Say when brokers take each quota up that was named, and how far a grace goes beyond it."""
    grace_ms = command.quotas.get(_GRACE, QuotaPolicy(tenant_id="").overage_grace_ms)

    def of(name: str) -> str:
        if name in _MADE_WITH:
            return "never: a tenant keeps what it was made with"
        if name in _GRACEFUL and grace_ms:
            most = command.quotas[name] * 3 // 2
            return f"live; up to {most} for {_hours(grace_ms)}, then no more ({_GRACE})"
        return Takes.LIVE.value

    return {"takes_effect": {name: of(name) for name in sorted(asked.body.quotas)}}


def _hours(milliseconds: int) -> str:
    return f"{milliseconds / 3_600_000:g} h"
