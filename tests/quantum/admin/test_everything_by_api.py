"""Everything the command line does to a cluster, the API does: the two lists, side by side.

Who adds a command says here by which routes the same is done, or why it is none of the API's. What
a command asks of a node and the API has not yet is listed by name: that list can only shrink.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from typer.main import get_command

from quantum.admin import ROUTES
from quantum.cli.app import build
from quantum.cli.commands import COMMANDS

CLIENT: Final = "it speaks MQTT, Kafka, AMQP or the key-value store's protocol, as any client may"
FILES: Final = "it reads or writes files and stores, with no node asked"
PROCESS: Final = "it starts, stops or is a process of this machine"
KEYS: Final = "it needs keys that leave no operator's hands"
NOT_YET: Final = "it asks pages of single nodes that are not below /v1 yet"
_T: Final = "/v1/tenants/{tenant_id}"

_LAKE: Final = (
    *("lake compact", "lake verify", "lake replay", "lake usage"),
    *("lake audit", "lake simulate", "lake report", "lake package"),
)
_KV: Final = ("kv get", "kv put", "kv cas", "kv delete", "kv range", "kv watch")

ABILITIES: Final[dict[str, str | tuple[str, ...]]] = {
    "up": PROCESS,
    "pub": (f"POST {_T}/publish",),
    "sub": (f"POST {_T}/poll",),
    "status": ("GET /v1/broker/status",),
    "sessions": (f"GET {_T}/sessions",),
    "session show": (f"GET {_T}/sessions/{{client_id}}",),
    "session kick": (f"POST {_T}/sessions/{{client_id}}/kick",),
    "why": ("GET /v1/groups/{partition_id}/why/{question}",),
    "explain access": (f"GET {_T}/acls",),
    "explain delivery": (f"GET {_T}/explain/delivery",),
    "explain message": (f"GET {_T}/explain/message",),
    "receipts get": (f"GET {_T}/receipts/{{message}}",),
    "receipts keys": ("GET /v1/keys",),
    "receipts verify": FILES,
    "doctor": NOT_YET,
    "scrub": NOT_YET,
    "streams create": (f"POST {_T}/streams",),
    "streams list": (f"GET {_T}/streams",),
    "streams show": (f"GET {_T}/streams/{{stream}}",),
    "streams delete": (f"POST {_T}/streams/{{stream}}/delete",),
    "streams read": (f"GET {_T}/streams/{{stream}}/records",),
    "queues create": (f"POST {_T}/queues",),
    "queues list": (f"GET {_T}/queues",),
    "queues show": (f"GET {_T}/queues/{{queue}}",),
    "queues peek": (f"GET {_T}/queues/{{queue}}/messages",),
    "queues purge": (f"POST {_T}/queues/{{queue}}/purge",),
    "queues delete": (f"POST {_T}/queues/{{queue}}/delete",),
    "queues move": (f"POST {_T}/queues/{{queue}}/move",),
    "queues dead-letters": (f"POST {_T}/queues/{{queue}}/revive",),
    "amqp send": (f"POST {_T}/queues/{{queue}}/send",),
    "amqp receive": (f"POST {_T}/queues/{{queue}}/receive",),
    "tenants show": (f"GET {_T}/ring",),
    "tenants grow": (f"POST {_T}/ring",),
    "kafka topics": (f"GET {_T}/kafka/topics",),
    "kafka describe": (f"GET {_T}/kafka/topics/{{topic}}",),
    "kafka produce": CLIENT,
    "kafka consume": CLIENT,
    "kafka groups": (f"GET {_T}/kafka/groups",),
    "kafka lag": (f"GET {_T}/kafka/groups/{{group}}",),
    "kafka transactions": CLIENT,
    "users add": ("PUT /v1/config",),
    "users remove": ("PUT /v1/config",),
    "users list": ("GET /v1/config",),
    "topics": (f"GET {_T}/topics",),
    "retained": (f"GET {_T}/retained",),
    "bench mqtt": CLIENT,
    "cert issue": KEYS,
    "cert rotate": KEYS,
    "cert revoke": ("PUT /v1/certificates/cluster",),
    "cert rollover begin": KEYS,
    "cert rollover status": KEYS,
    "cert rollover switch": KEYS,
    "cert rollover finish": KEYS,
    "keys tend": KEYS,
    "keys sign": KEYS,
    "keys sign-release": KEYS,
    "keys list": ("GET /v1/keys", "GET /v1/keys/deks"),
    "keys rotate": ("POST /v1/keys/deks", "POST /v1/keys"),
    "keys release": KEYS,
    "node start": PROCESS,
    "node ready": PROCESS,
    "node join": PROCESS,
    "node serve": PROCESS,
    "node enrol": PROCESS,
    "node token create": FILES,
    "node token list": FILES,
    "node token withdraw": FILES,
    "audit trim": FILES,
    "audit verify": FILES,
    "audit show": FILES,
    "traces": NOT_YET,
    "archive retain": FILES,
    "archive status": ("GET /v1/archive",),
    "archive verify": FILES,
    "backup create": FILES,
    "backup list": ("GET /v1/backups",),
    "backup verify": FILES,
    "restore": FILES,
    "at": FILES,
    "drill restore": FILES,
    "lake ingest": ("GET /v1/feed/{tenant_id}/{number}",),
    **dict.fromkeys(_LAKE, FILES),
    "config check": FILES,
    "config diff": FILES,
    "config show": ("GET /v1/config",),
    "config explain": ("GET /v1/config/explain",),
    "cluster init": KEYS,
    "cluster add-host": KEYS,
    "cluster members": ("GET /v1/groups/{partition_id}",),
    "cluster add-node": NOT_YET,
    "cluster remove-node": NOT_YET,
    "cluster rejoin-node": NOT_YET,
    "cluster transfer-leader": NOT_YET,
    "cluster upgrade": ("POST /v1/nodes/{node_id}/drain", "GET /v1/nodes/{node_id}"),
    "cluster up": PROCESS,
    "cluster down": PROCESS,
    "cluster status": ("GET /v1/groups", "GET /v1/nodes"),
    **dict.fromkeys(_KV, CLIENT),
    **dict.fromkeys((f"log {each}" for each in ["verify", "dump", "replay", "stat"]), FILES),
    "sim": PROCESS,
    "selftest": PROCESS,
    "spec catalog": FILES,
    "spec wide-ints": FILES,
}

LACKING: Final = {
    "cluster add-node",
    "cluster rejoin-node",
    "cluster remove-node",
    "cluster transfer-leader",
    "doctor",
    "scrub",
    "traces",
}
"""What the API has not: this list only shrinks."""

NODE_PAGES: Final = {
    "/status",
    "/doctor",
    "/incidents",
    "/scrub",
    "/groups",
    "/kafka",
    "/reload",
    "/office",
    "/livez",
    "/readyz",
}
"""What commands ask of nodes outside of /v1."""

_PATH: Final = re.compile(r"/[a-z][a-z0-9-]*")


def leaves(name: str, command: click.Command) -> Iterator[str]:
    """Name a command, or those below it."""
    below = getattr(command, "commands", None)
    if not below:
        yield name
        return
    for each, found in below.items():
        if not found.hidden:
            yield from leaves(f"{name} {each}", found)


def commands() -> list[str]:
    found: list[str] = []
    for name in COMMANDS:
        if name == "admin":  # it is made from the routes themselves
            continue
        tree = get_command(build([name]))
        found += leaves(name, getattr(tree, "commands", {}).get(name, tree))
    return found


def test_every_command_says_by_which_routes_the_same_is_done() -> None:
    assert sorted(commands()) == sorted(ABILITIES)


@pytest.mark.parametrize("name", [name for name in ABILITIES if isinstance(ABILITIES[name], tuple)])
def test_the_routes_that_a_command_stands_for_are_there(name: str) -> None:
    there = {f"{route.method} {route.path}" for route in ROUTES}
    assert set(ABILITIES[name]) <= there


def test_what_the_api_lacks_is_known_by_name() -> None:
    assert {name for name, why in ABILITIES.items() if why == NOT_YET} == LACKING


def asked_paths() -> Iterator[tuple[str, str]]:
    """Give every path that the command line's sources ask a node for, with the file."""
    asking = {"fetch", "post", "ask", "get_page", "_ask", "_order"}
    for file in sorted(Path("src/quantum/cli").glob("*.py")):
        for call in ast.walk(ast.parse(file.read_text())):
            if not isinstance(call, ast.Call):
                continue
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            for given in call.args if name in asking else ():
                text = given.values[0] if isinstance(given, ast.JoinedStr) else given
                value = text.value if isinstance(text, ast.Constant) else None
                if isinstance(value, str) and value.startswith("/"):
                    yield file.name, value


def test_commands_ask_nothing_of_a_node_that_is_on_no_list() -> None:
    found = list(asked_paths())
    assert len(found) > 10, "the sources are read"
    heads = {route.path.split("{")[0].rstrip("/") for route in ROUTES}
    for file, path in found:
        if path.startswith("/v1/"):
            head = path.split("?")[0].rstrip("/")
            assert any(each.startswith(head) or head.startswith(each) for each in heads), (
                file,
                path,
            )
        else:
            match = _PATH.match(path)
            assert match is not None and match[0] in NODE_PAGES, (file, path)
