"""What brokers do with a change that the control plane takes, and what they could not do.

The control plane knows neither topics nor a broker's settings: what no broker could carry out is
refused here, before it is written down, and the answer says when each part takes effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clustor.control import ScopeKind, SetAcls, SetConfiguration, SetQuotas
from quantum.admin.errors import malformed
from quantum.config.live import Takes, effects, mistakes
from quantum.serving.control_words import rule_mistakes

_MADE_WITH: Final = frozenset({"offline_queue_bytes_max", "offline_queue_messages_max"})
"""How committed entries are applied: a tenant keeps what it was made with."""
_UNUSED: Final = frozenset({"overage_grace_ms"})


def check_rules(command: SetAcls) -> None:
    """Refuse rules that cannot be read."""
    found = list(rule_mistakes(command.rules))
    if found:
        raise malformed("; ".join(found))


def check_configuration(command: SetConfiguration) -> None:
    """Refuse values that no broker could take."""
    found = mistakes(command.document)
    if found:
        raise malformed("; ".join(found))


def configuration_effects(command: SetConfiguration) -> Mapping[str, object]:
    """Say when brokers take each key up."""
    of_tenant = command.scope.kind is ScopeKind.TENANT
    return {"takes_effect": effects(command.document, of_tenant=of_tenant)}


def quota_effects(command: SetQuotas) -> Mapping[str, object]:
    """Say when brokers take each quota up."""

    def of(name: str) -> str:
        if name in _MADE_WITH:
            return "never: a tenant keeps what it was made with"
        return Takes.NEVER.value if name in _UNUSED else Takes.LIVE.value

    return {"takes_effect": {name: of(name) for name in sorted(command.quotas)}}
