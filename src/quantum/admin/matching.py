"""Finding the route of a request, and reading what it carries as the route's types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec

from quantum.admin.errors import ApiError, malformed, not_found
from quantum.admin.routes import REQUIRED, AdminRoute, Parameter
from quantum.admin.shapes import taken

QUERY_PARTS_MAX: Final = 16
_TRUTH: Final = {"true": True, "false": False}


class RouteTable:
    """The routes by path. A path of fixed parts is found before one with places."""

    def __init__(self, routes: Iterable[AdminRoute]) -> None:
        self._by_path: dict[str, dict[str, AdminRoute]] = {}
        for route in routes:
            self._by_path.setdefault(route.path, {})[route.method] = route
        ordered = sorted(self._by_path, key=lambda path: path.count("{"))
        self._patterns = [(_pattern(path), self._by_path[path]) for path in ordered]

    def find(self, method: str, path: str) -> tuple[AdminRoute, dict[str, str]]:
        """Return the route with the texts of its places; raises ApiError."""
        for pattern, methods in self._patterns:
            found = pattern.fullmatch(path)
            if found is None:
                continue
            if method not in methods:
                raise _wrong_method(method, methods)
            return methods[method], {name: _text(t) for name, t in found.groupdict().items()}
        raise not_found("no such page", path=path)


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{([a-z_]+)\\\}", r"(?P<\1>[^/]+)", re.escape(path)))


def _wrong_method(method: str, methods: Iterable[str]) -> ApiError:
    allowed = ", ".join(sorted(methods))
    return ApiError(
        405,
        "MethodNotAllowed",
        f"this page does not take {method}",
        next=f"use one of: {allowed}",
        facts={"allowed": sorted(methods)},
        headers={"Allow": allowed},
    )


def _text(quoted: str) -> str:
    try:
        return unquote(quoted, errors="strict")
    except UnicodeDecodeError:
        raise malformed("the path is not UTF-8") from None


def bind_path(route: AdminRoute, texts: Mapping[str, str]) -> dict[str, Any]:
    return {each.name: _read(each, texts[each.name]) for each in route.path_parameters}


def bind_query(route: AdminRoute, query: str) -> dict[str, Any]:
    """Read a query: each name once, none that the page does not know."""
    given = _parts(query)
    known = {each.name: each for each in route.query}
    for name in given:
        if name not in known:
            raise malformed("an unknown parameter", parameter=name, known=sorted(known))
    values: dict[str, Any] = {}
    for name, parameter in known.items():
        if name in given:
            values[name] = _read(parameter, given[name])
        elif parameter.default is REQUIRED:
            raise malformed("a parameter is missing", parameter=name)
        else:
            values[name] = parameter.default
    return values


def _parts(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            query,
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=QUERY_PARTS_MAX,
        )
    except ValueError:
        raise malformed("the query is not one of names and values") from None
    given = dict(pairs)
    if len(given) != len(pairs):
        raise malformed("a parameter twice")
    return given


def _read(parameter: Parameter, text: str) -> Any:
    plain = _TRUTH.get(text, text) if parameter.kind is bool else _number_or(parameter, text)
    try:
        return taken(parameter.kind, plain)
    except msgspec.ValidationError as error:
        raise malformed(str(error), parameter=parameter.name) from None


def _number_or(parameter: Parameter, text: str) -> object:
    """A narrow number is spelled in decimal, too: a path has no other way."""
    is_number = isinstance(msgspec.inspect.type_info(parameter.kind), msgspec.inspect.IntType)
    return int(text) if is_number and re.fullmatch(r"0|[1-9][0-9]{0,15}", text) else text


def bind_body(route: AdminRoute, body: bytes) -> Any:
    """Read the body strictly: an unknown member is refused."""
    if route.body is None:
        if body:
            raise malformed("a body where none is expected")
        return None
    try:
        return taken(route.body, msgspec.json.decode(body or b"{}"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(str(error)) from None
