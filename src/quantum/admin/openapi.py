"""The OpenAPI 3.1 document, made of the table of routes: what is served is what is documented."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from http import HTTPStatus
from typing import Any, Final

import msgspec

from clustor.control import canonical
from clustor.runtime.admin.http import JSON
from quantum.admin.errors import ErrorBody
from quantum.admin.routes import REQUIRED, AdminRoute, Parameter
from quantum.admin.shapes import schema_of
from quantum.admin.words import about

VERSION: Final = "1"
_REF: Final = "#/components/schemas/{name}"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_ABOUT: Final = (
    "The admin API of Quantum. A call is decided by the control plane's log: it is linearizable, "
    "audited, and answered the same way when it is repeated under its Idempotency-Key. Integers "
    "that may exceed 32 bits are decimal strings in answers; requests may spell them either way. "
    "Every refusal has the shape of ErrorBody, and says what to do next."
)

_HEADERS: Final = (
    {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "Names the call; one is drawn where it is absent, and returned.",
        "required": False,
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$", "maxLength": 128},
    },
    {
        "name": "Break-Glass",
        "in": "header",
        "description": "The break-glass token that this call uses up.",
        "required": False,
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$", "maxLength": 128},
    },
)


def document(routes: Iterable[AdminRoute]) -> bytes:
    """Return the document, as canonical JSON."""
    return canonical(build(tuple(routes)))


def build(routes: tuple[AdminRoute, ...]) -> dict[str, Any]:
    """Describe every route, and the types that they take and give."""
    bodies = [route.body for route in routes if route.body is not None]
    answers = [route.answer for route in routes]
    taken, taken_parts = _schemas(bodies, request=True)
    given, given_parts = _schemas([*answers, ErrorBody], request=False)
    parts, renamed = _joined(given_parts, taken_parts)
    body_of = dict(zip(map(id, bodies), taken, strict=True))
    answer_of = dict(zip(map(id, answers), given[:-1], strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = _operation(route, answer_of[id(route.answer)], given[-1])
        if route.body is not None:
            operation["requestBody"] = _request_body(_renamed(body_of[id(route.body)], renamed))
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Quantum admin API", "version": VERSION, "description": _ABOUT},
        "security": [{"clientCertificate": []}],
        "paths": paths,
        "components": {
            "schemas": parts,
            "securitySchemes": {"clientCertificate": {"type": "mutualTLS"}},
        },
    }


def _schemas(kinds: list[Any], *, request: bool) -> tuple[list[Any], dict[str, Any]]:
    schemas, parts = msgspec.json.schema_components(kinds, ref_template=_REF)
    names = {name: _UNSAFE.sub("_", name).strip("_") for name in parts}
    fresh = {
        names[name]: _renamed(schema_of(each, request=request), names)
        for name, each in parts.items()
    }
    return [_renamed(schema_of(each, request=request), names) for each in schemas], fresh


def _joined(given: dict[str, Any], taken: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Put both sides' types together; what requests may spell in two ways gets a second name."""
    differs = {name for name, each in taken.items() if given.get(name, each) != each}
    while True:  # what refers to a type with a second name has one, too
        more = {
            name for name, each in taken.items() if name in given and _refers(each, differs)
        } - differs
        if not more:
            break
        differs |= more
    renamed = {name: f"{name}Input" for name in differs}
    fresh = {renamed.get(name, name): _renamed(each, renamed) for name, each in taken.items()}
    for name, each in fresh.items():
        if name.endswith("Body"):
            _describe(each)
    return given | fresh, renamed


def _describe(schema: dict[str, Any]) -> None:
    for name, member in schema.get("properties", {}).items():
        member["description"] = about(name)


def _refers(schema: Any, names: set[str]) -> bool:
    if isinstance(schema, list):
        return any(_refers(each, names) for each in schema)
    if not isinstance(schema, dict):
        return False
    return _referred(schema) in names or any(_refers(each, names) for each in schema.values())


def _referred(schema: dict[str, Any]) -> str | None:
    found = schema.get("$ref")
    return found.rpartition("/")[2] if isinstance(found, str) else None


def _renamed(schema: Any, names: dict[str, str]) -> Any:
    if isinstance(schema, list):
        return [_renamed(each, names) for each in schema]
    if not isinstance(schema, dict):
        return schema
    name = _referred(schema)
    if name in names:
        return {**schema, "$ref": _REF.format(name=names[name])}
    return {key: _renamed(each, names) for key, each in schema.items()}


def _operation(route: AdminRoute, answer: Any, error: Any) -> dict[str, Any]:
    parameters = [_parameter(each, "path") for each in route.path_parameters]
    parameters += [_parameter(each, "query") for each in route.query]
    if route.make is not None:
        parameters += _HEADERS
    responses = {"200": _response("The answer.", answer, route.media)}
    for code in sorted(route.codes):
        responses[str(code)] = _response(HTTPStatus(code).phrase, error)
    operation = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.path.split("/")[2]],
        "parameters": parameters,
        "responses": responses,
        "x-roles": [role.value for role in sorted(route.roles)] or ["any certificate"],
    }
    if route.kind is not None:
        operation["x-command"] = route.kind.name
        operation["x-freshness"] = route.kind.freshness.value
    return operation


def _parameter(parameter: Parameter, place: str) -> dict[str, Any]:
    schema = schema_of(msgspec.json.schema(parameter.kind), request=False)
    definitions = schema.pop("$defs", {})
    name = _referred(schema)
    shown: dict[str, Any] = {
        "name": parameter.name,
        "in": place,
        "description": parameter.about,
        "required": parameter.default is REQUIRED,
        "schema": definitions.get(name, schema) if name is not None else schema,
    }
    if parameter.default not in (REQUIRED, None):
        default = parameter.default
        shown["schema"]["default"] = default.value if isinstance(default, Enum) else default
    return shown


def _request_body(schema: Any) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    return {"required": True, "content": content}


def _response(about: str, schema: Any, media: str = JSON) -> dict[str, Any]:
    return {"description": about, "content": {media: {"schema": schema if media == JSON else {}}}}
