"""Options of a command, made from what its route takes: a flag for a truth, JSON for the rest."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec
import typer

from clustor.control import AccessRole, ScopeKind, SettingScope
from quantum.admin.routes import LINEARIZABLE, REQUIRED, AdminRoute, Parameter
from quantum.admin.words import about

EXPECTED: Final = ("expected_version", "expected_routing_epoch", "expected_epoch")
"""What a command reads first, where it is not given."""


class UnreadableOption(Exception):
    """An option that cannot be read, in one sentence."""


def parameters(route: AdminRoute) -> Iterator[inspect.Parameter]:
    """Give the signature of a route's command: places as arguments, all else as options."""
    for place in route.path_parameters:
        yield _keyword(place.name, _scalar(place.kind), typer.Argument(help=_about(place)))
    for each in route.query:
        if each is LINEARIZABLE:
            option = typer.Option("--local", help="Read this node's copy, however old it is.")
            yield _keyword("local", bool, option, default=False)
        else:
            yield _option(each)
    for each in body_parameters(route):
        yield _option(each)


def body_parameters(route: AdminRoute) -> tuple[Parameter, ...]:
    """Name the members of a route's body."""
    if route.body is None:
        return ()
    return tuple(
        Parameter(
            member.name,
            member.type,
            about(member.name),
            REQUIRED if member.required else member.default,
        )
        for member in msgspec.structs.fields(route.body)
    )


def wants_token(route: AdminRoute) -> bool:
    return AccessRole.BREAK_GLASS in route.roles


def _option(parameter: Parameter) -> inspect.Parameter:
    kind, name = _without_none(parameter.kind), parameter.name.replace("_", "-")
    default: Any = parameter.default
    if parameter.name in EXPECTED:
        default = None
    if kind is bool:
        option = typer.Option(f"--{name}/--no-{name}", help=_about(parameter))
    else:
        option = typer.Option(f"--{name}", help=_about(parameter), metavar=_metavar(kind))
    if default is REQUIRED:
        return _keyword(parameter.name, _scalar(kind), option)
    if _scalar(kind) is str and default is not None and not isinstance(default, str):
        default = None  # the node knows it: it is left out
    return _keyword(parameter.name, _scalar(kind) | None, option, default=default)


def _keyword(
    name: str, kind: Any, option: Any, default: Any = inspect.Parameter.empty
) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, option],
    )


def _without_none(kind: Any) -> Any:
    kinds = [each for each in get_args(kind) if each is not type(None)]
    is_optional = get_origin(kind) in (Union, UnionType)
    return kinds[0] if is_optional and len(kinds) == 1 else kind


def _plain(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _scalar(kind: Any) -> Any:
    """Return what the command line reads: a truth, a number, a choice, or text."""
    plain = _plain(_without_none(kind))
    if plain in (bool, int):
        return plain
    if isinstance(plain, type) and issubclass(plain, Enum):
        return plain
    return str


def _metavar(kind: Any) -> str | None:
    plain = _plain(kind)
    if plain is bytes:
        return "BASE64"
    if plain is SettingScope:
        return "KIND[/NAME]"
    if plain is int:
        return "NUMBER"
    return "TEXT" if plain is str else (None if _scalar(kind) is not str else "JSON|@FILE")


def _about(parameter: Parameter) -> str:
    said = parameter.about[0].upper() + parameter.about[1:]
    return (
        f"{said}. Read first, where it is not given." if parameter.name in EXPECTED else f"{said}."
    )


# From what was typed to what is sent.


def read(parameter: Parameter, typed: Any) -> object:
    """Return what is sent for what was typed; raises BadOption."""
    kind = _plain(_without_none(parameter.kind))
    if isinstance(typed, Enum):
        return typed.value
    if not isinstance(typed, str) or kind in (str, bytes) or _is_of_words(kind):
        return typed
    if kind is SettingScope:
        return _scope(typed)
    return _json(parameter, typed)


def _is_of_words(kind: object) -> bool:
    """Say whether a kind is one of some words: what was typed is it, and no JSON."""
    return get_origin(kind) is Literal and all(isinstance(each, str) for each in get_args(kind))


def _scope(typed: str) -> dict[str, str]:
    kind, _, name = typed.partition("/")
    if kind not in {each.value for each in ScopeKind}:
        known = ", ".join(each.value for each in ScopeKind)
        raise UnreadableOption(f"--scope is one of {known}, with a name: Tenant/acme")
    return {"kind": kind, "name": name} if name else {"kind": kind}


def _json(parameter: Parameter, typed: str) -> object:
    flag = "--" + parameter.name.replace("_", "-")
    try:
        text = Path(typed[1:]).read_text() if typed.startswith("@") else typed
        return json.loads(text)
    except OSError as error:
        raise UnreadableOption(f"{flag}: cannot read {typed[1:]}: {error.strerror}") from None
    except ValueError as error:
        raise UnreadableOption(f"{flag} is not JSON: {error}") from None
