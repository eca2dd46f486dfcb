"""Issue 20, item 16: who may look at a node's broker, and who may order something of it."""

from __future__ import annotations

import pytest

from clustor.control import AccessRole
from quantum.admin.table_broker import BROKER, MESSAGES, SESSIONS
from quantum.admin.table_kafka import KAFKA
from tests.clustor.control.plane import OBSERVER, OPERATOR, STRANGER, TENANT_ADMIN
from tests.quantum.admin.certificates import certificate_of
from tests.quantum.admin.host import Desk

NO_BROKER = 404  # it was let through, and there is none behind this desk
LOOK, SEND = "/v1/tenants/{}/sessions", "/v1/tenants/{}/publish"
MESSAGE = {"topic": "a", "text": "x"}


@pytest.mark.parametrize(
    ("who", "look", "send"),
    [
        (OPERATOR, NO_BROKER, NO_BROKER),
        (OBSERVER, NO_BROKER, 403),
        (STRANGER, 403, 403),
        (TENANT_ADMIN, NO_BROKER, NO_BROKER),
    ],
)
async def test_roles_decide_and_a_refusal_is_on_record(who: str, look: int, send: int) -> None:
    desk, certificate = Desk(), certificate_of(who)
    assert (await desk.ask("GET", LOOK.format("a"), certificate=certificate)).code == look
    told = await desk.ask("POST", SEND.format("a"), MESSAGE, certificate=certificate)
    assert told.code == send
    refused = [note.path for note in desk.kept.notes]
    assert refused == [
        path for path, code in ((LOOK.format("a"), look), (SEND.format("a"), send)) if code == 403
    ]


async def test_a_tenant_admin_is_one_of_its_own_tenant_alone() -> None:
    desk, certificate = Desk(), certificate_of(TENANT_ADMIN)
    for method, path, body in (
        ("GET", LOOK.format("b"), None),
        ("POST", SEND.format("b"), MESSAGE),
        ("POST", "/v1/tenants/b/sessions/c/kick", {}),
        ("POST", "/v1/tenants/a/ring", {"prg_count": 4}),
        ("GET", "/v1/broker/status", None),
        ("GET", "/v1/tenants/b/kafka/groups", None),
        ("POST", "/v1/tenants/b/kafka/topics/t/delete", {}),
    ):
        told = await desk.ask(method, path, body, certificate=certificate)
        assert told.code == 403, path


async def test_a_look_needs_no_control_plane_and_an_order_needs_roles_that_were_heard_of() -> None:
    desk, certificate = Desk(), certificate_of(OPERATOR)
    desk.host.reachable, desk.host.age_ms = False, 90_000
    told = await desk.ask("GET", "/v1/broker/status", certificate=certificate)
    assert told.code == NO_BROKER
    told = await desk.ask("POST", SEND.format("a"), MESSAGE, certificate=certificate)
    assert (told.code, told.body["error"]) == (503, "RBACUnavailable")


def test_every_order_asks_for_somebody_in_charge() -> None:
    for route in (*BROKER, *SESSIONS, *MESSAGES, *KAFKA):
        assert route.is_local
        if route.mutates:
            assert route.roles <= {AccessRole.OPERATOR, AccessRole.TENANT_ADMIN}, route
