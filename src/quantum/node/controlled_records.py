"""A tenant's records, changed through the control plane in the name of who asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from clustor.control import (
    AccessRole,
    AclPolicy,
    Caller,
    Command,
    ConfigHead,
    ConfigVersion,
    Done,
    DraftReading,
    RbacManifest,
    RefusalCode,
    ScopeKind,
    SetAcls,
    SetConfiguration,
    SettingScope,
    find,
)
from clustor.runtime.containment import contained
from clustor.runtime.control.records import operator_of
from clustor.runtime.errors import ControlUnavailable
from clustor.runtime.node import Node
from clustor.runtime.node_parts import NodeControl
from quantum.config.live import mistakes
from quantum.tenants.control_words import rule_mistakes, settings_of
from quantum.tenants.tenant_records import (
    AccessRules,
    ChangeAsker,
    ChangeDone,
    ChangeRefusal,
    ChangeRefused,
    Document,
)

PLACE: Final = "tenant records"
_OPEN_MAX: Final = 16
"""So many changes are under way at once; more are asked to come again."""
_TRIES_MAX: Final = 8
_SECONDS_MAX: Final = 20.0
_PRINCIPAL_CHARS_MAX: Final = 256
_BUSY: Final = ChangeRefused(ChangeRefusal.UNAVAILABLE, "too many changes are under way")
_LATE: Final = ChangeRefused(ChangeRefusal.UNAVAILABLE, "the control plane did not answer in time")

ChangePlan: TypeAlias = Callable[[DraftReading], Command | ChangeRefused | None]
"""Looks at what stands; None: nothing is to be done."""


class ControlledRecords:
    """`TenantRecords` on a node that has a control plane."""

    def __init__(self, node: Node, control: NodeControl) -> None:
        self._cluster = node.cluster
        self._control = control
        self._open = 0

    def document(self, tenant: str) -> Document:
        return settings_of(self._control.cache, _scope(tenant))

    def rules(self, tenant: str) -> AccessRules | None:
        held = find(self._control.cache, AclPolicy, tenant)
        return None if held is None else held.rules

    def change_document(
        self,
        asker: ChangeAsker,
        tenant: str,
        change: Callable[[Document], Document],
        done: ChangeDone,
    ) -> None:
        self._begin(asker, tenant, lambda store: _plan_document(store, tenant, change), done)

    def change_rules(
        self,
        asker: ChangeAsker,
        tenant: str,
        change: Callable[[AccessRules], AccessRules],
        done: ChangeDone,
    ) -> None:
        self._begin(asker, tenant, lambda store: _plan_rules(store, tenant, change), done)

    def caller(self, asker: ChangeAsker, tenant: str) -> Caller:
        """Say in whose name the control plane is called.

        A tenant may bring its own authority, so no name that a certificate says is taken as it is:
        it stands below the tenant's. In plaintext everybody is the operator where the admin port,
        on loopback too, asks nobody either.
        """
        if asker.is_local and not self._cluster.admin_tls:
            return operator_of(self._cluster.id)
        name = (asker.principal or "")[:_PRINCIPAL_CHARS_MAX]
        return Caller(identity=f"spiffe://{self._cluster.id}/tenant/{tenant}/kafka/{name}")

    def _begin(self, asker: ChangeAsker, tenant: str, plan: ChangePlan, done: ChangeDone) -> None:
        if self._open >= _OPEN_MAX:
            done(_BUSY)
            return
        self._open += 1
        contained.spawn(PLACE, self._carry_out(self.caller(asker, tenant), plan, done), who=tenant)

    async def _carry_out(self, caller: Caller, plan: ChangePlan, done: ChangeDone) -> None:
        try:
            async with asyncio.timeout(_SECONDS_MAX):
                refused = await self._settle(caller, plan)
        except TimeoutError:
            refused = _LATE
        except ControlUnavailable as error:
            refused = ChangeRefused(ChangeRefusal.UNAVAILABLE, error.reason)
        finally:
            self._open -= 1
        done(refused)

    async def _settle(self, caller: Caller, plan: ChangePlan) -> ChangeRefused | None:
        for _ in range(_TRIES_MAX):
            store = await self._control.reading()
            if not _is_operator(store, caller.identity):  # no stranger fills the log
                words = f"{caller.identity} is no Operator by the cluster's roles"
                return ChangeRefused(ChangeRefusal.NOT_ALLOWED, words)
            command = plan(store)
            if command is None or isinstance(command, ChangeRefused):
                return command
            answer = await self._control.call(command, caller, self._control.request_id())
            if isinstance(answer, Done):
                return None
            if answer.code is not RefusalCode.CONFLICT:
                return ChangeRefused(_reason(answer.code), answer.reason)
        return _BUSY


def _reason(code: RefusalCode) -> ChangeRefusal:
    if code is RefusalCode.UNAUTHORIZED:
        return ChangeRefusal.NOT_ALLOWED
    return ChangeRefusal.UNAVAILABLE if code is RefusalCode.BUSY else ChangeRefusal.INVALID


def _is_operator(store: DraftReading, identity: str) -> bool:
    manifest = find(store, RbacManifest, "manifest")
    return manifest is not None and any(
        each.identity == identity and each.role is AccessRole.OPERATOR for each in manifest.bindings
    )


def _scope(tenant: str) -> SettingScope:
    return SettingScope(kind=ScopeKind.TENANT, name=tenant)


def _plan_document(
    store: DraftReading, tenant: str, change: Callable[[Document], Document]
) -> Command | ChangeRefused | None:
    scope = _scope(tenant)
    head = find(store, ConfigHead, scope.kind.value, scope.name)
    version = 0 if head is None else head.version
    held = find(store, ConfigVersion, scope.kind.value, scope.name, version)
    stands = {} if held is None else held.document
    wanted = dict(change(stands))
    if wanted == stands:
        return None
    wrong = mistakes(wanted)
    if wrong:
        return ChangeRefused(ChangeRefusal.INVALID, wrong[0])
    return SetConfiguration(scope=scope, expected_version=version, document=wanted)


def _plan_rules(
    store: DraftReading, tenant: str, change: Callable[[AccessRules], AccessRules]
) -> Command | ChangeRefused | None:
    held = find(store, AclPolicy, tenant)
    if held is None:
        return ChangeRefused(ChangeRefusal.INVALID, "the tenant has no access list to change")
    wanted = change(held.rules)
    if wanted == held.rules:
        return None
    wrong = next(iter(rule_mistakes(wanted)), None)
    if wrong is not None:
        return ChangeRefused(ChangeRefusal.INVALID, wrong)
    return SetAcls(
        tenant_id=tenant,
        expected_version=held.version,
        rules=wanted,
        disconnect_on_refusal=held.disconnect_on_refusal,
    )
