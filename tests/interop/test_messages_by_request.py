"""Issue 20, item 16: the broker below `/v1` — what is in it, and messages by request."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from quantum.admin import ROUTES, document
from quantum.admin.table_broker import BROKER, MESSAGES, SESSIONS
from quantum.cli.admin_api import AdminApi, Told
from tests.interop.broker_process import BrokerProcess
from tests.interop.stock_client import Opening, StockClient, Wish
from tests.interop.stock_paho import Paho
from tests.quantum.admin.test_openapi import CHECKS

V5 = 5
TENANT = "/v1/tenants/dev"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("rest") / "data", partitions=2) as found:
        yield found


def ask(broker: BrokerProcess, method: str, path: str, body: object = None) -> Told:
    return AdminApi(broker.admin).ask(method, path, body=body)


def good(told: Told) -> Any:
    assert told.code == 200, told.body
    return told.body


def publish(broker: BrokerProcess, topic: str, **body: object) -> Told:
    return ask(broker, "POST", f"{TENANT}/publish", {"topic": topic, **body})


def poll(broker: BrokerProcess, **body: object) -> Any:
    return good(ask(broker, "POST", f"{TENANT}/poll", body))


async def reader(broker: BrokerProcess, name: str, topic_filter: str) -> StockClient:
    client = await Paho().open(Opening(port=broker.mqtt, client_id=name, version=V5))
    await client.subscribe(Wish(topic_filter, 1))
    return client


def test_item_16_a_stock_client_gets_what_a_request_published(broker: BrokerProcess) -> None:
    async def story() -> None:
        client = await reader(broker, "stock-reader", "by-request/#")
        bodies: list[dict[str, Any]] = [
            {"text": "grün", "qos": 0},
            {"text": "grün", "content_type": "text/plain", "user_properties": [["a", "b"]]},
            {"base64": base64.b64encode(b"\0\xff").decode(), "qos": 2},
        ]
        for number, body in enumerate(bodies):
            told = await asyncio.to_thread(publish, broker, f"by-request/{number}", **body)
            assert good(told) == {"acknowledged": body.get("qos") != 0}
        got: dict[str, bytes] = {}
        while len(got) < 3:
            for each in await client.take():
                got[each.topic] = each.payload
        assert got == {
            "by-request/0": "grün".encode(),
            "by-request/1": "grün".encode(),
            "by-request/2": b"\0\xff",
        }
        await client.close()

    asyncio.run(story())


def test_item_16_a_poll_gets_what_a_stock_client_published_and_goes_on(
    broker: BrokerProcess,
) -> None:
    first = poll(broker, filters=["polled/#"], wait_ms=0)
    assert first["messages"] == [] and first["cursor"]

    async def story(payloads: list[bytes]) -> None:
        client = await Paho().open(Opening(port=broker.mqtt, client_id="stock-writer", version=V5))
        for payload in payloads:
            await client.publish("polled/x", payload, 1)
        await client.close()

    asyncio.run(story([b"one", b"two", b"\xff"]))
    found = poll(broker, cursor=first["cursor"], messages_max=2)
    assert [each["text"] for each in found["messages"]] == ["one", "two"]
    again = poll(broker, cursor=first["cursor"], messages_max=2)
    assert again["messages"] == found["messages"], "an answer that got lost is answered again"
    rest = poll(broker, cursor=again["cursor"])
    assert [each["base64"] for each in rest["messages"]] == [base64.b64encode(b"\xff").decode()]
    end = poll(broker, cursor=rest["cursor"], wait_ms=100, keep_seconds=0)
    assert end == {"messages": [], "cursor": None}
    told = ask(broker, "POST", f"{TENANT}/poll", {"cursor": rest["cursor"]})
    assert (told.code, told.body["error"]) == (410, "CursorEnded")


def test_item_16_lists_are_paged_and_a_kick_is_audited(broker: BrokerProcess) -> None:
    async def story() -> None:
        clients = [await reader(broker, f"paged-{n}", f"lists/{n}") for n in range(3)]
        names: list[str] = []
        page: dict[str, Any] = {}
        while len(names) < 3:
            after = f"&after={page['after']}" if page else ""
            path = f"{TENANT}/clients?contains=paged-&limit=1{after}"
            page = good(await asyncio.to_thread(ask, broker, "GET", path))
            (row,) = page["items"]
            assert (row["transport"], row["protocol"]) == ("tcp", "MQTT 5")
            assert page["elsewhere"] == []
            names.append(row["client_id"])
        assert names == ["paged-0", "paged-1", "paged-2"] and page["after"] is None
        for kind, expected in (("sessions?contains=paged-", 3), ("topics?filter=lists/%2B", 3)):
            page = good(await asyncio.to_thread(ask, broker, "GET", f"{TENANT}/{kind}"))
            assert len(page["items"]) == expected, page
        kick = f"{TENANT}/sessions/paged-1/kick"
        told = await asyncio.to_thread(ask, broker, "POST", kick, {})
        assert good(told) == {"client_id": "paged-1"}
        nobody = f"{TENANT}/sessions/nobody/kick"
        told = await asyncio.to_thread(ask, broker, "POST", nobody, {})
        assert (told.code, told.body["error"]) == (404, "NotFound")
        for client in clients:
            await client.close()

    asyncio.run(story())
    lines = "".join(
        each.read_text() for each in (broker.data / "node-1").rglob("*.jsonl") if each.is_file()
    )
    assert '"SessionEnded"' in lines and "operator" in lines


def test_item_16_rules_and_quotas_hold_for_requests_too(broker: BrokerProcess) -> None:
    deny = {"effect": "Deny", "action": "Any", "filter": "closed/#"}
    rules = [deny, {"effect": "Allow", "action": "Any", "filter": "#"}]
    for given in (rules, rules[1:]):
        stands = good(ask(broker, "GET", f"{TENANT}/acls"))["version"]
        body = {"expected_version": stands, "rules": given}
        good(ask(broker, "PUT", f"{TENANT}/acls", body))
        wanted = (403, 403) if given is rules else (200, 200)
        seen = None
        for _ in range(600):  # each node hears of rules by itself
            seen = (
                publish(broker, "closed/x", text="no").code,
                ask(broker, "POST", f"{TENANT}/poll", {"filters": ["closed/#"], "wait_ms": 0}).code,
            )
            if seen == wanted:
                break
        assert seen == wanted


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("publish", {"topic": "a/+", "text": "x"}, 400),
        ("publish", {"topic": "a", "text": "x", "base64": "eA=="}, 400),
        ("publish", {"topic": "$SYS/x", "text": "x"}, 403),
        ("poll", {}, 400),
        ("poll", {"filters": ["a/#/b"]}, 400),
        ("poll", {"cursor": "rest-000000000000000000000000.AQ"}, 400),
        ("poll", {"cursor": "rest-000000000000000000000000.AAE"}, 410),
        ("poll", {"filters": ["a"], "wait_ms": 60_000}, 400),
    ],
)
def test_item_16_what_cannot_be_meant_is_refused(
    broker: BrokerProcess, path: str, body: dict[str, object], code: int
) -> None:
    told = ask(broker, "POST", f"{TENANT}/{path}", body)
    assert told.code == code, told.body
    assert set(told.body) == {"error", "message", "next", "facts", "request_id"}
    other = ask(broker, "POST", f"/v1/tenants/nobody/{path}", {"topic": "a", "filters": ["a"]})
    assert other.code in (400, 404)


def test_item_16_there_is_no_second_door(broker: BrokerProcess) -> None:
    for path in ("/broker/status", "/broker/sessions", "/broker/archive", "/broker/feed"):
        assert ask(broker, "GET", path).code == 404


own = {(route.method, route.path) for route in (*BROKER, *SESSIONS, *MESSAGES)}
DOCUMENT = schemathesis.openapi.from_dict(
    json.loads(document(tuple(r for r in ROUTES if (r.method, r.path) in own)))
)


@DOCUMENT.parametrize()
@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_item_16_what_a_broker_serves_is_what_is_documented(
    case: Any, broker: BrokerProcess
) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("wait_ms"), int):
        case.body["wait_ms"] = min(case.body["wait_ms"], 20)
    case.path_parameters["tenant_id"] = "dev"
    case.call_and_validate(base_url=f"http://{broker.admin}", checks=CHECKS)


def test_item_16_the_page_on_http_does_what_it_shows(broker: BrokerProcess) -> None:
    """Every request of the page is answered, and as it shows where it shows an answer."""
    page = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
    found = re.findall(r"9080(/v1/\S+) .* -d '(.*)'\n```\n(?:\n```text\n(.*)\n```)?", page)
    assert len(found) == 2
    for path, body, shown in found:
        told = good(ask(broker, "POST", path, json.loads(body)))
        assert not shown or told == json.loads(shown)
    pages = re.findall(r"`(?:GET )?(/v1/[a-z/]+)`", page)
    assert len(pages) >= 4
    for path in pages:
        assert ask(broker, "GET", path).code in (200, 404), path  # it has no archive
