"""What an operator writes down about tenants, read and checked: one sentence for each mistake.

The document is plain data (from TOML or JSON). Everything in it may change while the broker
runs, but what only a new tenant can choose: its partitions and the bounds of its queues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Literal, TypeAlias

import msgspec

from quantum.tenancy.access import AclRule, Effect, Operation, ResourceKind, any_of
from quantum.tenancy.acl import CompiledAcl, compile_acl
from quantum.tenancy.buckets import RateLimit, Rates
from quantum.tenancy.errors import InvalidQuota, InvalidRule, InvalidTenantId, InvalidTenants
from quantum.tenancy.names import read_pattern
from quantum.tenancy.namespace import check_tenant_id
from quantum.tenancy.policy import (
    AclRefusal,
    ConnectionAudit,
    FullQueueChoice,
    SharedDistribution,
    TenantPolicy,
    Wills,
)
from quantum.tenancy.quotas import QUOTA_MAXIMA, Quotas
from quantum.tenancy.types import Principal

PARTITIONS_MAX: Final = 512
_REFUSALS: Final = {"stay": AclRefusal.REASON_CODE, "disconnect": AclRefusal.DISCONNECT}

Table: TypeAlias = "dict[str, object]"


@dataclass(frozen=True, slots=True)
class TenantDescription:
    """One tenant as its operator wants it."""

    prgs: int | None = None
    """How many partitions a new tenant gets; None leaves it to the broker."""
    server_names: frozenset[str] = frozenset()
    """Which names (SNI) lead to it, in lower case."""
    mqtt: str | None = None
    """Where its clients come in plaintext, in development: `HOST:PORT`."""
    acl: CompiledAcl | None = None
    """Its access rules; None where it has none, and everything is allowed."""
    policy: TenantPolicy = TenantPolicy()
    connection_rates: Rates = Rates()
    """How fast each of its connections may go."""


class _TenantTable(msgspec.Struct, forbid_unknown_fields=True):
    prgs: int | None = None
    server_names: list[str] = []
    mqtt: str | None = None
    acl_refusal: Literal["stay", "disconnect"] = "stay"
    shared_distribution: Literal["round_robin", "hash"] = "round_robin"
    wills: Literal["continued", "standard"] = "continued"
    connection_audit: Literal["sampled", "all", "off"] = "sampled"
    full_queues: Literal["block", "drop-oldest", "drop-newest", "end-session"] = "block"
    acl: list[Table] | None = None
    quotas: Table = {}
    rates: Table = {}
    connection_rates: Table = {}


class _RuleTable(msgspec.Struct, forbid_unknown_fields=True):
    effect: Literal["allow", "deny"]
    action: Literal[
        "both", "any", "publish", "subscribe", "produce", "consume", "manage", "describe"
    ] = "both"  # the older word for any
    principals: list[str] | None = None
    resource: ResourceKind = ResourceKind.TOPIC
    pattern: str | None = None
    name: str | None = None
    prefix: str | None = None


class _RateTable(msgspec.Struct, forbid_unknown_fields=True):
    per_second: int
    burst: int | None = None


def describe_tenants(document: Mapping[str, object]) -> dict[str, TenantDescription]:
    """Read `{"tenants": {NAME: {…}}}`. Raises InvalidTenants, which lists every mistake."""
    reading = _Reading()
    unknown = sorted(set(document) - {"tenants"})
    reading.mistakes += [f"{name!r} is not known here: only 'tenants' is" for name in unknown]
    tables = document.get("tenants", {})
    if not isinstance(tables, Mapping):
        raise InvalidTenants(["'tenants' must be a table with one table for each tenant"])
    found = {str(name): reading.tenant(str(name), raw) for name, raw in tables.items()}
    reading.mistakes += _clashes(found)
    if reading.mistakes:
        raise InvalidTenants(reading.mistakes)
    return found


@dataclass
class _Reading:
    """Goes on after a mistake, so that all of them are told at once."""

    mistakes: list[str] = field(default_factory=list)

    def tenant(self, name: str, raw: object) -> TenantDescription:
        where = f"tenant {name!r}"
        try:
            check_tenant_id(name)
            table = msgspec.convert(raw, _TenantTable)
        except InvalidTenantId:
            self.mistakes.append(f"{where}: a name is 1 to 63 of a-z, 0-9 and dashes in between")
            return TenantDescription()
        except msgspec.ValidationError as error:
            self.mistakes.append(f"{where}: {_plain(error)}")
            return TenantDescription()
        if table.prgs is not None and not 1 <= table.prgs <= PARTITIONS_MAX:
            self.mistakes.append(f"{where}: prgs must be from 1 to {PARTITIONS_MAX}")
        return TenantDescription(
            table.prgs,
            frozenset(each.lower() for each in table.server_names),
            table.mqtt,
            self._acl(where, table.acl),
            TenantPolicy(
                acl_refusal=_REFUSALS[table.acl_refusal],
                shared_distribution=SharedDistribution(table.shared_distribution),
                wills=Wills(table.wills),
                connection_audit=ConnectionAudit(table.connection_audit),
                full_queues=FullQueueChoice(table.full_queues),
                quotas=self._quotas(where, table.quotas),
                rates=self._rates(f"{where}, rates", table.rates),
            ),
            self._rates(f"{where}, connection_rates", table.connection_rates),
        )

    def _acl(self, where: str, tables: list[Table] | None) -> CompiledAcl | None:
        if tables is None:
            return None
        rules: list[AclRule] = []
        for number, raw in enumerate(tables, 1):
            try:
                rule = _rule(msgspec.convert(raw, _RuleTable), number)
                compile_acl([rule])
            except msgspec.ValidationError as error:
                self.mistakes.append(f"{where}, rule {number}: {_plain(error)}")
            except InvalidRule as error:
                self.mistakes.append(f"{where}, rule {number}: {error.reason}")
            else:
                rules.append(rule)
        return compile_acl(rules)

    def _quotas(self, where: str, table: Table) -> Quotas:
        known = {each.name for each in fields(Quotas)}
        good: dict[str, int] = {}
        for name, value in table.items():
            if name not in known:
                self.mistakes.append(f"{where}: there is no quota {name!r}")
                continue
            try:
                Quotas(**{name: msgspec.convert(value, int)})
            except (InvalidQuota, msgspec.ValidationError):
                most = getattr(QUOTA_MAXIMA, name)
                self.mistakes.append(f"{where}: quota {name!r} must be from 0 to {most}")
            else:
                good[name] = msgspec.convert(value, int)
        return Quotas(**good)

    def _rates(self, where: str, table: Table) -> Rates:
        known = {each.name for each in fields(Rates)}
        good: dict[str, RateLimit] = {}
        for name, value in table.items():
            if name not in known:
                self.mistakes.append(f"{where}: there is no rate {name!r}")
                continue
            try:
                good[name] = _rate(msgspec.convert(value, _RateTable))
            except msgspec.ValidationError as error:
                self.mistakes.append(f"{where}, {name!r}: {_plain(error)}")
            except ValueError as error:
                self.mistakes.append(f"{where}, {name!r}: {error}")
        return Rates(**good)


def _rule(table: _RuleTable, number: int) -> AclRule:
    """Read a rule. Raises InvalidRule where its members contradict each other."""
    people, kind = table.principals, table.resource
    pattern, is_prefix = read_pattern(kind, table.pattern, table.name, table.prefix)
    is_any = table.action in ("both", "any")
    return AclRule(
        Effect(table.effect),
        any_of(kind) if is_any else frozenset({Operation(table.action)}),
        pattern,
        None if people is None else frozenset(map(Principal, people)),
        number,
        kind,
        is_prefix,
    )


def _rate(table: _RateTable) -> RateLimit:
    burst = table.per_second if table.burst is None else table.burst
    if table.per_second < 1 or burst < 1:
        raise ValueError("per_second and burst must be at least 1")
    return RateLimit(table.per_second, burst)


def _plain(error: msgspec.ValidationError) -> str:
    """Say what msgspec found, without its path into a document that people do not see."""
    what, _, path = str(error).partition(" - at `$")
    place = path.strip("`.")
    return f"{what} in {place}" if place else what


def _clashes(found: Mapping[str, TenantDescription]) -> Iterator[str]:
    """Find what leads to two tenants."""
    owners: dict[str, str] = {}
    for name, description in found.items():
        ways = sorted(description.server_names)
        if description.mqtt is not None and not description.mqtt.endswith(":0"):
            ways.append(description.mqtt)
        for way in ways:
            other = owners.setdefault(way, name)
            if other != name:
                yield f"{way!r} leads to two tenants, {other!r} and {name!r}"
