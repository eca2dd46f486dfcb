"""`quantum admin`: every page of the admin API as a command, made from the same table.

Path parts are arguments, members of a body options; what is no scalar is JSON, or `@file`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import typer
from rich.console import Console

from clustor.runtime.admin.caller import Credentials
from quantum.admin.openapi import document
from quantum.admin.routes import LINEARIZABLE, AdminRoute
from quantum.admin.table import ROUTES
from quantum.cli.admin_api import AdminApi, Told
from quantum.cli.admin_asking import (
    ADMIN_DEFAULT,
    Admin,
    AsJson,
    Replace,
    RequestId,
    Token,
    fail_told,
    telling,
)
from quantum.cli.admin_break_glass import forget_used, glass_certificate
from quantum.cli.admin_client import parse_address
from quantum.cli.admin_options import (
    EXPECTED,
    UnreadableOption,
    body_parameters,
    parameters,
    read,
    wants_token,
)
from quantum.cli.admin_people import bind, issue, unbind
from quantum.cli.admin_tables import facts_table, list_table
from quantum.cli.credentials import Authority, Cert, KeyOnly, speak_as
from quantum.cli.exits import Exit, fail
from quantum.cli.naming import own_command

ABOUT: Final = (
    "Read and change what the control plane holds: nodes, tenants, groups, configuration, keys.\n\n"
    "Every change is linearizable, audited, and carried out once however often it is repeated "
    "under its --idempotency-key. In development any caller on loopback is Operator; elsewhere "
    "--cert, --cert-key and --ca say who calls.\n\n"
    "Example: quantum admin tenants create --tenant-id acme --sni acme.example.com"
)
NOUNS: Final = {
    "cluster": "The whole cluster.",
    "nodes": "Nodes: register, drain, remove.",
    "bootstrap-tokens": "Tokens by which nodes enrol.",
    "tenants": "Tenants with their quotas, ACLs and trust.",
    "certificates": "Trust bundles, and certificates that are revoked.",
    "routes": "The tenants' rings.",
    "groups": "Groups: placement, durability, and why they do not.",
    "quarantines": "Replicas that must not write.",
    "proofs": "Durability proofs.",
    "config": "Versioned configuration by scope.",
    "features": "Feature gates.",
    "overrides": "Signed exceptions to guardrails.",
    "break-glass": "Tokens for emergencies: one scope, one use, five minutes.",
    "fences": "Fences of regions, and promotions.",
    "lag-alerts": "Partitions whose followers are structurally behind.",
    "bundles": "Definition bundles.",
    "barriers": "Activation barriers.",
    "keys": "Public keys and key epochs.",
    "roles": "Who may do what.",
    "audit": "Who did what, when, and what became of it.",
    "loglevel": "How much a node logs.",
    "broker": "The broker of a node: how it stands.",
    "sessions": "Sessions of a tenant: look at them, end one.",
    "clients": "Clients that are connected.",
    "topics": "Filters that clients subscribe to.",
    "retained": "Retained messages.",
    "ring": "A tenant's ring on a node: look at it, let it grow.",
    "messages": "Publish, and wait for messages.",
    "explain": "One message: would it come to a client, and where has it been.",
    "receipts": "Proof that a message was on the disks of a quorum.",
    "streams": "Messages kept by offset: make streams, read them, end them.",
    "queues": "AMQP's queues: what is in them, and what is done to them.",
    "kafka-topics": "Kafka's topics: look at them, make and end them.",
    "kafka-groups": "Kafka's consumer groups: members, lags, why they wait.",
    "archive": "The archive of a node.",
    "backups": "Backups by a schedule: how it stands, and which there are.",
    "feed": "The feed of a node's committed entries.",
}
# Where a command finds what stands now: the page, and the fact in it.
_STANDS: Final = {
    "expected_version": ("version",),
    "expected_routing_epoch": ("placement.routing_epoch", "routing_epoch"),
    "expected_epoch": ("placement.durability_mode_epoch",),
}


class _Command:
    """One route as a command."""

    def __init__(self, route: AdminRoute) -> None:
        self._route = route

    def __call__(
        self,
        *,
        admin: str,
        as_json: bool,
        cert: Path | None,
        cert_key: Path | None,
        ca: Path | None,
        idempotency_key: str | None = None,
        break_glass: str | None = None,
        **typed: Any,
    ) -> None:
        headers = {"Idempotency-Key": idempotency_key, "Break-Glass": break_glass}
        try:
            speak_as(Credentials(cert, cert_key, ca))
            api = AdminApi(parse_address(admin))
            with telling():
                told = self._ask(api, typed, {n: v for n, v in headers.items() if v is not None})
        except (ValueError, UnreadableOption) as error:
            fail(str(error), Exit.USAGE)
        if not told.is_done:
            fail_told(told)
        if wants_token(self._route):
            forget_used(cert)
        if as_json:
            typer.echo(json.dumps(told.body))
        else:
            _print(self._route, told.body)

    def _ask(self, api: AdminApi, typed: dict[str, Any], headers: dict[str, str]) -> Told:
        route = self._route
        path = _filled(route.path, typed)
        query = {
            each.name: _in_query(read(each, typed[each.name]))
            for each in route.query
            if each is not LINEARIZABLE and typed.get(each.name) is not None
        }
        if typed.get("local"):
            query["linearizable"] = "false"
        body = {
            each.name: read(each, typed[each.name])
            for each in body_parameters(route)
            if typed.get(each.name) is not None
        }
        for name in EXPECTED:
            if name in typed and typed[name] is None:
                place = query if any(each.name == name for each in route.query) else body
                place[name] = _stands(api, route, typed, body, name)
        content = body if route.body is not None else None
        method = "PUT" if typed.get("replace") else route.method
        return api.ask(method, path, query=query, body=content, headers=headers)


def _in_query(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _filled(path: str, typed: dict[str, Any]) -> str:
    for name, value in typed.items():
        path = path.replace(f"{{{name}}}", quote(str(getattr(value, "value", value)), safe=""))
    return path


def _stands(
    api: AdminApi, route: AdminRoute, typed: dict[str, Any], body: dict[str, Any], name: str
) -> str:
    """Read what stands now; where there is nothing yet, it is 0."""
    path = route.path.removesuffix("/durability")
    scope = body.get("scope", {})
    query = {"scope": scope["kind"], "name": scope.get("name", "all")} if scope else {}
    told = api.ask("GET", _filled(path, typed), query=query)
    if told.code == 404:
        return "0"
    if not told.is_done:
        fail_told(told)
    for fact in _STANDS[name]:
        found = told.body
        for part in fact.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if found is not None:
            return str(found)
    return "0"


def _print(route: AdminRoute, body: dict[str, Any]) -> None:
    console = Console()
    if route.make is not None:
        typer.echo(f"done at revision {body['revision']} (request {body['request_id']})")
        if body["result"]:
            console.print(facts_table(body["result"].items()))
    elif "items" in body:
        title = route.command_line.partition(" ")[0].capitalize()
        console.print(list_table(title, route.columns, body["items"]))
        if body.get("after") is not None:
            typer.echo(f"there are more: --after {body['after']}")
    else:
        console.print(facts_table(body.items()))


def _command(route: AdminRoute) -> Callable[..., None]:
    """Make the function that typer reads: its signature and its help are the route's."""
    command = _Command(route)

    def run(**typed: Any) -> None:
        command(**typed)

    wanted = [*parameters(route), *_common(route)]
    run.__name__ = route.name
    run.__doc__ = _help(route)
    run.__annotations__ = {each.name: each.annotation for each in wanted}
    run.__signature__ = inspect.Signature(wanted)  # type: ignore[attr-defined]
    return run


def _common(route: AdminRoute) -> list[inspect.Parameter]:
    wanted: list[tuple[str, Any, Any]] = []
    if route.make is not None:
        wanted.append(("idempotency_key", RequestId, None))
    if wants_token(route):
        wanted.append(("break_glass", Token, None))
    if route.method == "PATCH":
        wanted.append(("replace", Replace, False))
    wanted += [
        ("admin", Admin, ADMIN_DEFAULT),
        ("as_json", AsJson, False),
        ("cert", Cert, None),
        ("cert_key", KeyOnly, None),
        ("ca", Authority, None),
    ]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(n, keyword, default=d, annotation=a) for n, a, d in wanted]


def _help(route: AdminRoute) -> str:
    roles = ", ".join(sorted(route.roles)) or "whoever has a certificate"
    lines = [route.summary, f"{route.method} {route.path}, for {roles}."]
    example = f"{own_command()} admin {route.command_line} {route.example}".strip()
    return "\n\n".join((*lines, f"Example: {example}"))


def openapi() -> None:
    """Print the OpenAPI document of this build; a node serves the same at /openapi.json.

    Example: quantum admin openapi > openapi.json
    """
    typer.echo(document(ROUTES))


def build() -> typer.Typer:
    """Make the tree: a noun for each kind of object, a verb for each page."""
    tree = typer.Typer(help=ABOUT, no_args_is_help=True)
    nouns = {noun: typer.Typer(help=about, no_args_is_help=True) for noun, about in NOUNS.items()}
    for route in ROUTES:
        if route.command_line:
            noun, verb = route.command_line.split()
            nouns[noun].command(verb)(_command(route))
    for noun, subtree in nouns.items():
        tree.add_typer(subtree, name=noun)
    tree.command("openapi")(openapi)
    tree.command("certificate")(issue)
    nouns["break-glass"].command("certificate")(glass_certificate)
    nouns["roles"].command("bind")(bind)
    nouns["roles"].command("unbind")(unbind)
    return tree


app = build()
