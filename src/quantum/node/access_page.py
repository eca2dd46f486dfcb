"""Which access rule decides about a client: asked by people, answered by what enforces it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from quantum.protocols.mqtt.session.tenant_sessions import TenantSessions
from quantum.tenancy import (
    AccessDecision,
    AclRule,
    Ground,
    Operation,
    ResourceKind,
    any_of,
    named_for,
)
from quantum.tenants.policy import TenantGuard

if TYPE_CHECKING:
    from quantum.node.service import BrokerService

_PREFIX: Final = "/clients/"
_SUFFIX: Final = "/access"
_CONNECT: Final = "connect"
_OPERATIONS: Final = frozenset(each.value for each in Operation)
_RESOURCES: Final = frozenset(each.value for each in ResourceKind)

Answer = tuple[int, object]


@dataclass(frozen=True, slots=True)
class AccessVerdict:
    """What the rules say, and which of them says it."""

    allowed: bool
    sentence: str
    rule: int = 0
    """Its number in the tenant's list, from 1; 0: no rule decided."""


class AccessQuestion(NamedTuple):
    """What somebody asks about."""

    action: str
    name: str
    kind: ResourceKind = ResourceKind.TOPIC


def explain_access(
    guard: TenantGuard, principal: str, client_id: bytes, wanted: AccessQuestion
) -> AccessVerdict:
    """Ask the rules themselves, and put their answer into one sentence."""
    if wanted.action == _CONNECT:
        return _explain_connect(guard, principal, client_id)
    asked = (Operation(wanted.action), wanted.kind, wanted.name.encode())
    decision = guard.may(principal, *asked, client_id=client_id)
    return AccessVerdict(
        decision.allowed, say_decision(decision), decision.rule.number if decision.rule else 0
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


def say_decision(decision: AccessDecision) -> str:
    """Put what the rules decided into one sentence."""
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
    named = "" if rule.operations == any_of(rule.kind) else ", ".join(sorted(rule.operations))
    action = named.capitalize() or "Any"
    whom = "" if rule.principals is None else f" for {', '.join(sorted(rule.principals))}"
    return f"rule {rule.number} ({rule.effect.value.capitalize()} {action} {_what(rule)}{whom})"


def _what(rule: AclRule) -> str:
    pattern = rule.pattern.decode(errors="replace")
    if rule.kind is ResourceKind.TOPIC:
        return pattern
    return f"{rule.kind.value} {pattern}{'*' if rule.is_prefix else ''}".strip()


def _read_wanted(query: dict[str, str]) -> AccessQuestion | str:
    """Read a question, or say in one sentence what is wrong with it."""
    action, name = query.get("action", "").lower(), query.get("topic", "")
    resource = query.get("resource", ResourceKind.TOPIC.value).lower()
    if resource not in _RESOURCES:
        return f"resource is one of {', '.join(ResourceKind)}"
    kind = ResourceKind(resource)
    if action != _CONNECT and action not in _OPERATIONS:
        return f"action is one of {', '.join(Operation)} or {_CONNECT}"
    if action == _CONNECT:
        return AccessQuestion(action, "", kind)
    if named_for(kind, Operation(action)) not in any_of(kind) | {Operation.DESCRIBE}:
        return f"nobody can {action} a {kind.value}"
    if not name and kind is not ResourceKind.CLUSTER:
        return f"{action} needs a {kind.value}"
    return AccessQuestion(action, "" if kind is ResourceKind.CLUSTER else name, kind)


class AccessPage:
    """Answers `GET /clients/<client id>/access?action=…&topic=…[&tenant=…&principal=…]`.

    With `resource=` the topic is the name of a resource of that kind.
    """

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    def get(self, path: str, query: dict[str, str]) -> Answer | None:
        """Answer, or return None for a page that is not ours."""
        if not path.startswith(_PREFIX) or not path.endswith(_SUFFIX):
            return None
        client_id = unquote(path.removeprefix(_PREFIX).removesuffix(_SUFFIX)).encode()
        wanted = _read_wanted(query)
        if isinstance(wanted, str):
            return 400, {"error": wanted}
        tenant = self._tenant(query.get("tenant"), client_id)
        if tenant is None:
            return 404, {"error": "no such tenant", "tenant": query.get("tenant", "")}
        return 200, self._page(tenant, client_id, wanted, query.get("principal"))

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
        tenant: TenantSessions, client_id: bytes, wanted: AccessQuestion, principal: str | None
    ) -> dict[str, object]:
        connection = tenant.of_client(client_id).connections.get(client_id)
        if principal is None:
            principal = "" if connection is None else connection.identity or ""
        verdict = explain_access(tenant.guard, principal, client_id, wanted)
        return {
            "tenant": tenant.name,
            "principal": principal,
            "connected": connection is not None,
            **asdict(verdict),
        }
