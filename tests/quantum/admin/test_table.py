"""The table of routes: every call of the control plane has a page, and means the same by it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest

from clustor.control import KINDS, Command, RefusalCode, RollBackConfiguration
from clustor.runtime.admin.http import respond
from quantum.admin import ROUTES, AdminRoute
from quantum.admin.errors import REFUSALS
from quantum.admin.matching import RouteTable, bind_body, bind_path, bind_query
from quantum.admin.routes import READERS, AdminRequest
from quantum.admin.shapes import shown
from quantum.admin.words import ABOUT
from tests.clustor.control.samples import SAMPLES

GOLDEN = Path(__file__).parent / "golden" / "paths.txt"
CALLS = [route for route in ROUTES if route.make is not None]


def test_every_call_of_the_control_plane_has_a_page() -> None:
    reached = {route.kind.name for route in CALLS if route.kind is not None}
    assert reached == {kind.name for kind in KINDS}
    assert len(KINDS) == 52


def test_names_paths_and_command_lines_are_each_one_routes() -> None:
    said = [route.command_line for route in ROUTES if route.command_line]
    for each in (
        [route.name for route in ROUTES],
        [(route.method, route.path) for route in ROUTES],
        said,
    ):
        assert [key for key, count in Counter(each).items() if count > 1] == []
    assert all(len(each.split()) == 2 for each in said)


def test_a_page_that_reads_asks_for_a_role_and_one_that_calls_asks_for_the_calls() -> None:
    for route in ROUTES:
        if route.make is None:
            assert route.roles, route
            assert route.roles <= READERS | {"TenantAdmin"}, route
        else:
            assert route.kind is not None
            assert route.roles == route.kind.roles, route


def test_every_refusal_has_a_status_and_says_what_to_do() -> None:
    assert set(REFUSALS) == set(RefusalCode)
    for status, then in REFUSALS.values():
        assert 400 <= status < 500
        assert len(then) > 10


def test_the_port_can_say_every_status_that_the_api_answers_with() -> None:
    codes = {200, 405, 500, *(status for status, _ in REFUSALS.values())}
    for code in codes.union(*(route.codes for route in ROUTES)):
        assert respond(code, b"{}").startswith(b"HTTP/1.1 %d " % code)


def test_every_member_of_a_request_is_described() -> None:
    members = {each.name for route in ROUTES for each in route.path_parameters}
    for route in ROUTES:
        members |= (
            {each.name for each in msgspec.structs.fields(route.body)} if route.body else set()
        )
    assert members <= set(ABOUT)
    assert set(ABOUT) <= members | {"expected_routing_epoch", "to", "scope"}


def test_the_paths_are_those_of_the_golden_list() -> None:
    """Change it on purpose: clients know these."""
    lines = sorted(f"{route.path} {route.method} {route.name}" for route in ROUTES)
    assert GOLDEN.read_text().splitlines() == lines


def sent(route: AdminRoute, command: Command) -> tuple[str, bytes]:
    """Spell a command as a request of its route: wide integers as strings, as answers do."""
    spelled: dict[str, Any] = msgspec.json.decode(shown(type(command), command))
    del spelled["kind"]
    if isinstance(command, RollBackConfiguration):
        scope = spelled.pop("scope")
        spelled |= {"to": spelled.pop("to_version"), "scope": scope["kind"], "name": scope["name"]}
    path, query = route.path, {}
    for each in route.path_parameters:
        path = path.replace(f"{{{each.name}}}", quote(str(spelled.pop(each.name)), safe=""))
    for each in route.query:
        query[each.name] = spelled.pop(each.name)
    if route.name == "SetClusterTrust":
        del spelled["tenant_id"]
    target = f"{path}?{urlencode(query)}" if query else path
    return target, b"" if route.body is None else msgspec.json.encode(spelled)


@pytest.mark.parametrize(
    "route", [each for each in CALLS if each.method != "PATCH"], ids=lambda route: route.name
)
def test_what_a_page_makes_of_a_request_is_the_command(route: AdminRoute) -> None:
    assert route.kind is not None
    command = SAMPLES[route.kind.name]
    if route.name == "SetClusterTrust":
        command = msgspec.structs.replace(command, tenant_id=None)
    target, body = sent(route, command)
    path, _, query = target.partition("?")
    found, texts = RouteTable(ROUTES).find(route.method, path)
    assert found is route
    values = bind_path(route, texts) | bind_query(route, query)
    asked = AdminRequest(None, None, None, values, bind_body(route, body), "r")  # type: ignore[arg-type]
    assert route.make is not None
    assert route.make(asked) == command
