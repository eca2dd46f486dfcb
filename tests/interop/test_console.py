"""The console in a real Chromium, on a real broker: every page, an action each, no complaint.

Pictures of the run are in `build/console/`. axe-core is taken from where `make console` put it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.interop.broker_process import BrokerProcess
from tests.interop.browser import Browser, chromium

ROOT: Final = Path(__file__).resolve().parents[2]
PICTURES: Final = ROOT / "build" / "console"
AXE: Final = ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js"
PAGES: Final = {
    "overview": "What is wrong",
    "nodes": "Groups on this node",
    "tenants": "Quotas of dev",
    "clients": "Connected clients",
    "topics": "Retained messages",
    "streams": "A new stream",
    "access": "Access rules of dev",
    "configuration": "Versions",
    "audit": "Calls",
    "why": "Access: may it?",
    "live": "Connection",
    "everything": "A page of the API",
}
_JUDGE: Final = """
axe.run().then((found) => found.violations.map((each) => `${each.id}: ${each.help}: ` +
  each.nodes.slice(0, 3).map((node) => node.html.slice(0, 200)).join(' | ')))
"""
_SETTLED: Final = "!document.body.innerText.includes('Asking the node')"

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium here")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("console") / "var", partitions=1) as running:
        yield running


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory, broker: BrokerProcess) -> Iterator[Browser]:
    found = chromium()
    assert found is not None
    with Browser(found, tmp_path_factory.mktemp("chromium") / "profile") as running:
        running.open(f"http://{broker.admin}/")
        running.until("document.querySelector('header select')")
        yield running


@pytest.fixture
def page(chrome: Browser) -> Iterator[Browser]:
    """The browser, which must have nothing to complain of when the test is over."""
    chrome.complaints.clear()
    yield chrome
    chrome.ask("1")
    assert chrome.complaints == []


def show(page: Browser, name: str) -> None:
    page.ask(f"location.hash = '#/{name}'")
    here = "document.querySelector('nav [aria-current]')?.getAttribute('href')"
    page.until(f"{here} === '#/{name}' && {_SETTLED}")


def reads(page: Browser, words: str) -> None:
    page.until(f"document.body.innerText.includes({json.dumps(words)})")


def post(page: Browser, path: str, body: object) -> None:
    """Order something as a page of this origin can."""
    options = {
        "method": "POST",
        "headers": {"Content-Type": "application/json"},
        "body": json.dumps(body),
    }
    assert page.ask(f"(await fetch({json.dumps(path)}, {json.dumps(options)})).status") == 200


@pytest.mark.parametrize("name", PAGES)
def test_every_page_opens_in_both_widths_and_colours(page: Browser, name: str) -> None:
    show(page, name)
    reads(page, PAGES[name])
    assert page.ask("document.querySelector('.problem')?.innerText ?? ''") == ""
    page.picture(PICTURES / f"{name}.png")
    page.picture(PICTURES / f"{name}-phone.png", width=390, height=844)
    assert page.ask("document.documentElement.scrollWidth") <= 390
    page.call("Emulation.clearDeviceMetricsOverride")


@pytest.mark.skipif(not AXE.exists(), reason="`make console` was not run here: no axe-core")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_has_nothing_to_say_of_any_page(page: Browser, theme: str) -> None:
    page.ask(f"document.documentElement.dataset.theme = '{theme}'")
    page.call("Runtime.evaluate", expression=AXE.read_text())
    for name in PAGES:
        show(page, name)
        page.picture(PICTURES / f"{name}-{theme}.png")
        assert page.ask(_JUDGE) == [], name
    page.ask("delete document.documentElement.dataset.theme")


def test_nothing_is_loaded_from_elsewhere_and_no_foreign_script_runs(
    page: Browser, broker: BrokerProcess
) -> None:
    show(page, "overview")
    names = page.ask("performance.getEntriesByType('resource').map((each) => each.name)")
    assert names and all(name.startswith(f"http://{broker.admin}/") for name in names), names
    refused = page.ask(
        "new Promise((done) => { addEventListener('securitypolicyviolation', (event) => "
        "done(event.effectiveDirective), {once: true}); const it = document.createElement("
        "'script'); it.textContent = 'window.foreign = 1'; document.head.append(it); })"
    )
    assert refused == "script-src-elem"
    assert page.ask("window.foreign ?? 0") == 0
    page.complaints.clear()  # the browser says that it refused it


def test_a_message_is_published_and_seen_retained_in_the_tree(page: Browser) -> None:
    show(page, "topics")
    page.ask("form('Publish a message').querySelector('input[type=checkbox]').click()")
    page.fill("Publish a message", To_topic="plant/lamp/7", Payload="on")
    reads(page, "Acknowledged: a quorum has it on disk.")
    page.until("[...document.querySelectorAll('summary')].some((each) => "
               "each.textContent.startsWith('plant'))")  # fmt: skip
    page.until("[...document.querySelectorAll('details pre')].some((each) => "
               "each.textContent.startsWith('on'))")  # fmt: skip


def test_the_live_client_gets_what_it_publishes_and_is_kicked_after_a_question(
    page: Browser, broker: BrokerProcess
) -> None:
    show(page, "live")
    page.fill("Connect", Address=f"ws://127.0.0.1:{broker.ws}/mqtt", Client_id="from-the-page")
    reads(page, "connected")
    page.fill("Subscribe", Topic_filter="hello/#")
    reads(page, "subscription to hello/#: acknowledged")
    page.fill(
        "Publish by MQTT",
        Topic="hello/page",
        Payload='{"answer": 42}',
        Content_type="application/json",
        User_properties="trace=é1",
    )
    reads(page, "message to hello/page: acknowledged after")
    reads(page, '{"answer": 42}')
    reads(page, "application/json, trace=é1")
    page.picture(PICTURES / "live-used.png")
    rows = broker.page("/v1/tenants/dev/clients")["items"]
    assert [each["client_id"] for each in rows] == ["from-the-page"]
    post(page, "/v1/tenants/dev/sessions/from-the-page/kick", {})
    reads(page, "the broker ended it")


def test_a_session_is_found_looked_into_explained_and_ended(
    page: Browser, broker: BrokerProcess
) -> None:
    body = {"filters": ["lamp/#"], "wait_ms": 0, "keep_seconds": 600}
    post(page, "/v1/tenants/dev/poll", body)
    client = broker.page("/v1/tenants/dev/sessions")["items"][0]["client_id"]
    show(page, "clients")
    page.fill("Search clients", Client_id_contains=client[:8])
    page.press(client)
    reads(page, "lamp/#")
    page.press("Why does it wait?")
    reads(page, "Rule:")
    page.picture(PICTURES / "clients-used.png")
    page.press("End this session…")
    page.until("document.querySelector('dialog[open]')")
    page.press("Leave it")
    page.until("!document.querySelector('dialog')")
    assert len(broker.page("/v1/tenants/dev/sessions")["items"]) == 1
    page.press("End this session…")
    page.press("End it")
    reads(page, f"The session of {client} has ended.")
    assert broker.page("/v1/tenants/dev/sessions")["items"] == []


def test_a_stream_is_made_filled_read_and_deleted(page: Browser) -> None:
    show(page, "streams")
    reads(page, "There is no stream yet")
    page.fill("Create a stream", Stream_name="telemetry", Topic_filters="sensors/#")
    reads(page, "The stream telemetry captures from now on.")
    show(page, "topics")
    page.fill("Publish a message", To_topic="sensors/1", Payload="21 degrees")
    reads(page, "Acknowledged: a quorum has it on disk.")
    show(page, "streams")
    page.press("telemetry")
    page.press("Read")
    reads(page, "21 degrees")
    page.press("Delete this stream…")
    page.press("Delete it")
    reads(page, "The stream telemetry is gone.")


def test_a_quota_and_a_setting_change_come_back_and_are_on_record(
    page: Browser, broker: BrokerProcess
) -> None:
    show(page, "tenants")
    page.fill("Change a quota", New_value="4321")
    reads(page, "connections_max is 4,321 now")
    reads(page, "of 4,321")
    show(page, "configuration")
    for value in (4096, 8192):
        document = json.dumps({"rates.publishes": value})
        page.fill("Set a configuration document", The_whole_document=document)
        page.until(f'document.body.innerText.includes(\'"version":"{value // 4096}"\')')
    page.press("Go back to version 1 of Tenant/dev")
    page.press("Go back")
    reads(page, "Tenant/dev is as it was in version 1.")
    page.fill("Explain a key", Key="rates.publishes")
    reads(page, "rates.publishes is 4096")
    page.fill("Set a configuration document", The_whole_document="no JSON")
    reads(page, "this is not JSON")
    show(page, "audit")
    page.ask("fill(document.querySelector('main input[type=search]'), 'RollBackConfiguration')")
    reads(page, "1 of ")
    reads(page, "RollBackConfiguration")


def test_why_says_sentence_rule_and_command(page: Browser) -> None:
    show(page, "why")
    page.fill("Ask about a client", Client_id="nobody-knows-it")
    reads(page, "it is not connected and has no session")
    reads(page, "UnknownClient")
    reads(page, "quantum why nobody-knows-it --client --tenant dev")
    page.fill("Ask about access", Topic="plant/1")
    reads(page, "the tenant has no access list")
    page.fill("Ask about a group", Group="1000")
    reads(page, "this replica leads in term")
    page.picture(PICTURES / "why-used.png")
    show(page, "nodes")
    page.press("Why?")
    reads(page, "WhySnapshotBlocked")


def test_every_other_page_of_the_api_can_be_read(page: Browser) -> None:
    show(page, "everything")
    page.ask("fill(document.querySelector('main select'), '/v1/tenants/{tenant_id}/ring')")
    page.fill("Ask /v1/tenants/{tenant_id}/ring")
    reads(page, '"settled": true')
    page.ask("fill(document.querySelector('main select'), '/v1/loglevel')")
    page.fill("Ask /v1/loglevel")
    reads(page, "clustor.node")


def test_a_node_that_is_gone_is_said_and_its_return_is_seen(
    page: Browser, broker: BrokerProcess
) -> None:
    show(page, "overview")
    broker.kill()
    reads(page, "the node does not answer")
    page.picture(PICTURES / "overview-gone.png")
    broker.start()
    page.until("!document.querySelector('.problem')")
    page.complaints.clear()  # the browser says that it could not connect
