"""Versioned configuration with rollback (quantumqtt §19): one document per scope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, TypeAlias

import msgspec

from clustor.control.calls import Command
from clustor.control.draft import Draft, DraftReading, Refuse, find, scan
from clustor.control.objects import ControlObject, key_of
from clustor.control.rbac import CallerAuthority
from clustor.control.types import Count, Identity, Name, RefusalCode, Text
from clustor.kv import Key

VERSIONS_KEPT_MAX: Final = 100  # of one scope
MEMBERS_MAX: Final = 1_024

Value: TypeAlias = bool | Annotated[int, msgspec.Meta(ge=-(2**53) + 1, le=2**53 - 1)] | Text
Document: TypeAlias = dict[Name, Value]


class ScopeKind(StrEnum):
    """From the widest to the narrowest; a narrower scope's value wins (quantumqtt §19.1)."""

    CLUSTER = "Cluster"
    NODE = "Node"
    PARTITION = "Partition"
    TENANT = "Tenant"
    DEFINITION = "Definition"


class SettingScope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    kind: ScopeKind
    name: Name = "all"  # of the cluster there is one


class ConfigVersion(ControlObject, frozen=True, kw_only=True):
    """One version of a scope's document, never changed; the newest is in force."""

    PREFIX: ClassVar[str] = "config/"
    scope: SettingScope
    version: Count
    document: Document
    set_by: Identity
    set_at: Count
    tag: Text = ""
    restores: Count | None = None  # the version that a rollback brought back

    def key(self) -> Key:
        return key_of(ConfigVersion, self.scope.kind.value, self.scope.name, self.version)


class ConfigHead(ControlObject, frozen=True, kw_only=True):
    """Which version of a scope is in force, and the oldest that is kept."""

    PREFIX: ClassVar[str] = "config_head/"
    scope: SettingScope
    version: Count
    oldest: Count

    def key(self) -> Key:
        return key_of(ConfigHead, self.scope.kind.value, self.scope.name)


class SetConfiguration(Command, frozen=True, kw_only=True):
    """Replace a scope's document by a new version."""

    scope: SettingScope
    expected_version: Count
    document: Annotated[Document, msgspec.Meta(max_length=MEMBERS_MAX)]
    tag: Text = ""


class RollBackConfiguration(Command, frozen=True, kw_only=True):
    """Bring an earlier version back, as a new one."""

    scope: SettingScope
    to_version: Count


def on_set_configuration(
    draft: Draft, authority: CallerAuthority, command: SetConfiguration
) -> dict[str, Any]:
    head = _head(draft, command.scope)
    if head.version != command.expected_version:
        raise Refuse(RefusalCode.CONFLICT, "another version stands", version=head.version)
    return _write(draft, authority, head, command.document, tag=command.tag, restores=None)


def on_roll_back_configuration(
    draft: Draft, authority: CallerAuthority, command: RollBackConfiguration
) -> dict[str, Any]:
    head = _head(draft, command.scope)
    held = draft.need(
        ConfigVersion, command.scope.kind.value, command.scope.name, command.to_version
    )
    return _write(draft, authority, head, held.document, tag=held.tag, restores=command.to_version)


def _head(draft: Draft, scope: SettingScope) -> ConfigHead:
    if (scope.kind is ScopeKind.CLUSTER) != (scope.name == "all"):
        raise Refuse(RefusalCode.INVALID, "the cluster's scope is named 'all', and no other")
    held = draft.find(ConfigHead, scope.kind.value, scope.name)
    return held or ConfigHead(scope=scope, version=0, oldest=1)


def _write(
    draft: Draft,
    authority: CallerAuthority,
    head: ConfigHead,
    document: Document,
    *,
    tag: str,
    restores: int | None,
) -> dict[str, Any]:
    version, oldest, scope = head.version + 1, head.oldest, head.scope
    if version - oldest >= VERSIONS_KEPT_MAX:
        draft.delete(ConfigVersion, scope.kind.value, scope.name, oldest)
        oldest += 1
    draft.put(ConfigHead(scope=scope, version=version, oldest=oldest))
    draft.put(
        ConfigVersion(
            scope=scope,
            version=version,
            document=document,
            set_by=authority.identity,
            set_at=draft.now_ms,
            tag=tag,
            restores=restores,
        )
    )
    return {"version": version}


# Reading.


@dataclass(frozen=True, slots=True)
class ValueOrigin:
    """Where a value comes from: the scope, and the version in which it was last changed."""

    value: Value
    scope: SettingScope
    version: int
    set_by: str
    set_at: int


def explain(store: DraftReading, name: str, scopes: Sequence[SettingScope]) -> ValueOrigin | None:
    """Say which of `scopes`, from the widest to the narrowest, gives a name its value."""
    for scope in reversed(scopes):
        head = find(store, ConfigHead, scope.kind.value, scope.name)
        if head is None:
            continue
        versions = list(scan(store, ConfigVersion, scope.kind.value, scope.name))
        if name in versions[-1].document:
            return _since(name, scope, versions)
    return None


def _since(name: str, scope: SettingScope, versions: list[ConfigVersion]) -> ValueOrigin:
    """Go back to the version from which on the value has been what it is."""
    newest = versions[-1]
    value, since = newest.document[name], newest
    for version in reversed(versions[:-1]):
        if version.document.get(name) != value or name not in version.document:
            break
        since = version
    return ValueOrigin(value, scope, since.version, since.set_by, since.set_at)
