"""Which access rule decides about a client: asked by people, answered by what enforces it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from quantum.protocols.mqtt.session.tenant_sessions import TenantSessions
from quantum.tenancy import AclRule, Action, Decision, Ground, Principal
from quantum.tenants.policy import TenantGuard
from quantum.types import ClientId

if TYPE_CHECKING:
    from quantum.node.service import BrokerService

_PREFIX: Final = "/clients/"
_SUFFIX: Final = "/access"
_ACTIONS: Final = {"publish": Action.PUBLISH, "subscribe": Action.SUBSCRIBE}
_CONNECT: Final = "connect"

Answer = tuple[int, object]


@dataclass(frozen=True, slots=True)
class AccessVerdict:
    """What the rules say, and which of them says it."""

    allowed: bool
    sentence: str
    rule: int = 0
    """Its number in the tenant's list, from 1; 0: no rule decided."""


def explain_access(
    guard: TenantGuard, principal: str, client_id: bytes, action: str, topic: str
) -> AccessVerdict:
    """Ask the rules themselves, and put their answer into one sentence."""
    if action == _CONNECT:
        return _explain_connect(guard, principal, client_id)
    acl = guard.description.acl
    if acl is None:
        return AccessVerdict(
            allowed=True, sentence="allowed: the tenant has no access list, so everything is"
        )
    who = (Principal(principal), ClientId(client_id))
    decision = acl.check(_ACTIONS[action], *who, topic.encode())
    return AccessVerdict(
        decision.allowed, _say(decision), decision.rule.number if decision.rule else 0
    )


def _explain_connect(guard: TenantGuard, principal: str, client_id: bytes) -> AccessVerdict:
    rules = guard.connects
    if rules is None:
        return AccessVerdict(
            allowed=True, sentence="allowed: no rule is about Connect, so everybody may"
        )
    allowed, rule = rules.decide(principal, client_id)
    if rule is None:
        return AccessVerdict(
            allowed=False,
            sentence="refused: there are rules about Connect, and none allows this client",
        )
    number = rules.number(rule)
    named = f"rule {number} ({rule.effect.value} {rule.action.value} {rule.filter})"
    return AccessVerdict(allowed, f"{'allowed' if allowed else 'refused'} by {named}", number)


def _say(decision: Decision) -> str:
    word = "allowed" if decision.allowed else "refused"
    if decision.rule is None:
        return f"{word}: {decision.ground.value}"
    if decision.withholds is not None:
        held = _named(decision.withholds)
        return f"allowed by {_named(decision.rule)}; messages that {held} denies are withheld"
    wins = ": one that denies wins" if decision.ground is Ground.DENIED else ""
    return f"{word} by {_named(decision.rule)}{wins}"


def _named(rule: AclRule) -> str:
    """Name a rule as the list has it."""
    action = "Any" if rule.action is Action.BOTH else str(rule.action.name).capitalize()
    whom = "" if rule.principals is None else f" for {', '.join(sorted(rule.principals))}"
    pattern = rule.pattern.decode(errors="replace")
    return f"rule {rule.number} ({rule.effect.value.capitalize()} {action} {pattern}{whom})"


class AccessPage:
    """Answers `GET /clients/<client id>/access?action=…&topic=…[&tenant=…&principal=…]`."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    def get(self, path: str, query: dict[str, str]) -> Answer | None:
        """Answer, or return None for a page that is not ours."""
        if not path.startswith(_PREFIX) or not path.endswith(_SUFFIX):
            return None
        client_id = unquote(path.removeprefix(_PREFIX).removesuffix(_SUFFIX)).encode()
        action, topic = query.get("action", "").lower(), query.get("topic", "")
        if action not in (*_ACTIONS, _CONNECT):
            return 400, {"error": "action is publish, subscribe or connect"}
        if action != _CONNECT and not topic:
            return 400, {"error": f"{action} needs a topic"}
        tenant = self._tenant(query.get("tenant"), client_id)
        if tenant is None:
            return 404, {"error": "no such tenant", "tenant": query.get("tenant", "")}
        return 200, self._page(tenant, client_id, action, topic, query.get("principal"))

    def _tenant(self, name: str | None, client_id: bytes) -> TenantSessions | None:
        tenants = self._service.mqtt.tenants
        if name is not None:
            return tenants.get(name)
        for tenant in tenants.values():
            if client_id in tenant.of_client(client_id).connections:
                return tenant
        return next(iter(tenants.values()), None)

    @staticmethod
    def _page(
        tenant: TenantSessions, client_id: bytes, action: str, topic: str, principal: str | None
    ) -> dict[str, object]:
        connection = tenant.of_client(client_id).connections.get(client_id)
        if principal is None:
            principal = "" if connection is None else connection.identity or ""
        verdict = explain_access(tenant.guard, principal, client_id, action, topic)
        return {
            "tenant": tenant.name,
            "principal": principal,
            "connected": connection is not None,
            **asdict(verdict),
        }
