"""A route: one row of the table from which requests are served, documented and mirrored.

What a path's `{name}` and a query's name are is the type of the command's or the page's member of
that name; what is left of a command is the body. So a page cannot take what it does not document.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from inspect import getdoc
from types import UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin

import msgspec

from clustor.control import (
    KINDS,
    AccessRole,
    CacheFreshness,
    Caller,
    Command,
    CommandKind,
    DraftReading,
)
from clustor.control.rbac import CallerAuthority
from clustor.runtime.admin.http import JSON
from quantum.admin.answers import CallDone
from quantum.admin.words import about

READERS: Final = frozenset({AccessRole.OPERATOR, AccessRole.OBSERVER, AccessRole.NODE})
TENANT_READERS: Final = READERS | {AccessRole.TENANT_ADMIN}
OPERATORS: Final = frozenset({AccessRole.OPERATOR})
ANYBODY: Final[frozenset[AccessRole]] = frozenset()
"""Whoever has a certificate."""

READ_CODES: Final = (400, 401, 403, 404, 421, 503, 504)
CALL_CODES: Final = (*READ_CODES, 408, 409, 411, 413, 415, 422, 429)
_PLACE: Final = re.compile(r"\{([a-z_]+)\}")
_KINDS: Final[Mapping[type[Command], CommandKind]] = {kind.command: kind for kind in KINDS}


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED: Final = _Required()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A typed part of a path or a query."""

    name: str
    kind: Any
    about: str
    default: object = REQUIRED


LINEARIZABLE: Final = Parameter(
    "linearizable",
    bool,
    "true: nothing older than what was answered before; false: this node's copy, whose age is in "
    "the header Quantum-Cache-Age-Ms",
    default=True,
)


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """A request that was understood; `store` is good until the next await."""

    store: DraftReading
    caller: Caller
    authority: CallerAuthority
    values: Mapping[str, Any]
    body: Any
    request_id: str
    encrypted: bool = False
    """Whether it came over TLS."""
    quotas_in_force: Callable[[str], Mapping[str, int]] = lambda _tenant: {}
    """A tenant's quotas as this node's broker holds them, whoever said them."""


ReadPage: TypeAlias = Callable[[Any, AdminRequest], object | Awaitable[object]]
MakeCommand: TypeAlias = Callable[[AdminRequest], Command]


@dataclass(frozen=True, slots=True)
class AdminRoute:
    """One row. Exactly one of `make` (a call) and `read` (a page of this node) is set."""

    method: str
    path: str
    name: str
    summary: str
    answer: Any
    roles: frozenset[AccessRole]
    codes: tuple[int, ...]
    path_parameters: tuple[Parameter, ...] = ()
    query: tuple[Parameter, ...] = ()
    body: type[msgspec.Struct] | None = None
    make: MakeCommand | None = None
    read: ReadPage | None = None
    kind: CommandKind | None = None
    check: Callable[[Any], None] | None = None
    """Refuses a command that the control plane would take and no broker could carry out."""
    remark: Callable[[Any, AdminRequest], Mapping[str, object]] | None = None
    """What is said beside the result of a command."""
    own_tenant: bool = False
    """Whether a TenantAdmin sees it for the tenants that are theirs."""
    command_line: str = ""
    """How `quantum admin` says it: a noun and a verb."""
    example: str = ""
    columns: tuple[str, ...] = field(default=())
    """What a table of a listing shows first."""
    is_local: bool = False
    """Whether it is about this node alone: it is answered without the control plane, by roles as
    this node last heard of them. How a node stands is asked when nothing else answers."""
    media: str = JSON
    """What an answer is; anything but JSON is sent as it is."""

    @property
    def mutates(self) -> bool:
        return self.method != "GET"

    @property
    def freshness(self) -> CacheFreshness | None:
        return self.kind.freshness if self.kind is not None else None


def call(
    method: str,
    path: str,
    command: type[Command],
    command_line: str,
    example: str = "",
    *,
    query: tuple[str, ...] = (),
    preset: Mapping[str, object] | None = None,
    name: str = "",
) -> AdminRoute:
    """Make the route of a command; `preset` members are said by the path itself."""
    members = {each.name: each for each in msgspec.structs.fields(command)}
    in_path = tuple(_PLACE.findall(path))
    kind = _KINDS[command]
    preset = preset or {}
    left = [m for m in members.values() if m.name not in {*in_path, *query, *preset}]
    has_body = method not in ("GET", "DELETE")
    assert has_body or not left, f"{method} {path} leaves {[m.name for m in left]}"

    def make(asked: AdminRequest) -> Command:
        given = {} if asked.body is None else _members(asked.body)
        found: Command = msgspec.convert(
            {**preset, **asked.values, **given}, type=command, from_attributes=True
        )
        return found

    return AdminRoute(
        method=method,
        path=path,
        name=name or command.__name__,
        summary=_first_line(command),
        answer=CallDone,
        roles=kind.roles,
        codes=CALL_CODES,
        path_parameters=tuple(_place(members[each]) for each in in_path),
        query=tuple(_parameter(members[each]) for each in query),
        body=_body_type(name or command.__name__, left) if has_body else None,
        make=make,
        kind=kind,
        command_line=command_line,
        example=example,
    )


def page(
    path: str,
    read: ReadPage,
    answer: Any,
    command_line: str,
    summary: str,
    *,
    method: str = "GET",
    roles: frozenset[AccessRole] = READERS,
    kinds: Mapping[str, Any] | None = None,
    query: tuple[Parameter, ...] = (),
    body: type[msgspec.Struct] | None = None,
    own_tenant: bool = False,
    example: str = "",
    columns: tuple[str, ...] = (),
    is_local: bool = False,
    media: str = JSON,
    codes: tuple[int, ...] = (),
) -> AdminRoute:
    """Make the route of something that is read, or done, at this node."""
    places = _PLACE.findall(path)
    parameters = tuple(Parameter(each, (kinds or {})[each], about(each)) for each in places)
    return AdminRoute(
        method=method,
        path=path,
        name=command_line.title().replace(" ", "").replace("-", ""),
        summary=summary,
        answer=answer,
        roles=roles,
        codes=(*(READ_CODES if method == "GET" else CALL_CODES), *codes),
        path_parameters=parameters,
        query=(*query, LINEARIZABLE) if method == "GET" and not is_local else query,
        body=body,
        read=read,
        own_tenant=own_tenant,
        command_line=command_line,
        example=example,
        columns=columns,
        is_local=is_local,
        media=media,
    )


def _members(body: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(body, name) for name in body.__struct_fields__}


def _parameter(member: msgspec.structs.FieldInfo) -> Parameter:
    default = REQUIRED if member.required else member.default
    return Parameter(member.name, member.type, about(member.name), default)


def _place(member: msgspec.structs.FieldInfo) -> Parameter:
    """What stands in a path is always said, also where a command could leave it out."""
    kinds = [each for each in get_args(member.type) if each is not type(None)]
    is_optional = get_origin(member.type) in (Union, UnionType)
    kind = kinds[0] if is_optional and len(kinds) == 1 else member.type
    return Parameter(member.name, kind, about(member.name))


def _body_type(name: str, members: list[msgspec.structs.FieldInfo]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for member in members:
        if member.required:
            fields.append((member.name, member.type))
        else:
            fields.append((member.name, member.type, member.default))
    return msgspec.defstruct(
        f"{name}Body", fields, frozen=True, kw_only=True, forbid_unknown_fields=True
    )


def _first_line(kind: type) -> str:
    return (getdoc(kind) or "").partition("\n")[0]
