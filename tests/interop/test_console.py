"""The console in a real Chromium, on a real broker: every page, an action each, no complaint.

Pictures of the run are in `build/console/`. axe-core is taken from where `make console` put it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Final

import paho.mqtt.client as paho
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.interop.broker_process import BrokerProcess
from tests.interop.browser import Browser, chromium
from tests.interop.kafka_clients import make_topic, produce_all, until
from tests.interop.stock_proton import connected, send_all

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
    "kafka": "Consumer groups",
    "queues": "A new queue",
    "users": "A new user, or a new password",
    "access": "Access rules of dev",
    "configuration": "Versions",
    "audit": "Calls",
    "care": "Nothing has gone wrong since this node started.",
    "why": "Access: may it?",
    "deliveries": "Would a message come?",
    "live": "Connection",
    "everything": "A page of the API",
}
KAFKA: Final = "/v1/tenants/dev/kafka/"
_JUDGE: Final = """
axe.run().then((found) => found.violations.map((each) => `${each.id}: ${each.help}: ` +
  each.nodes.slice(0, 3).map((node) => node.html.slice(0, 200)).join(' | ')))
"""
_SETTLED: Final = "!document.body.innerText.includes('Asking the node')"

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium here")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    place = tmp_path_factory.mktemp("console")
    archive = f"file://{place / 'archive'}"
    with BrokerProcess(place / "var", partitions=1, archive=archive, backup_seconds=30) as running:
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


def looked_at(page: Browser, name: str) -> None:
    """Keep pictures of a page as it stands; it fits a phone, and axe-core has nothing to say."""
    if AXE.exists():
        page.call("Runtime.evaluate", expression=AXE.read_text())
        assert page.ask(_JUDGE) == []
    page.picture(PICTURES / f"{name}-used.png")
    page.picture(PICTURES / f"{name}-used-phone.png", width=390, height=844)
    assert page.ask("document.documentElement.scrollWidth") <= 390
    page.call("Emulation.clearDeviceMetricsOverride")


def cells(page: Browser, caption: str) -> list[list[str]]:
    """Return what a table's rows say, by its caption, as soon as it is there."""
    table = (
        "[...document.querySelectorAll('table')].find((each) => each.caption.innerText"
        f".startsWith({json.dumps(caption)}))"
    )
    page.until(table)
    rows = f"[...{table}.tBodies[0].rows]"
    found: list[list[str]] = page.ask(
        f"{rows}.map((row) => [...row.cells].map((each) => each.innerText.trim()))"
    )
    return found


def post(page: Browser, path: str, body: object, method: str = "POST") -> None:
    """Order something as a page of this origin can."""
    options = {
        "method": method,
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


def test_the_live_client_counts_reads_protobuf_at_qos_2_and_names_its_messages(
    page: Browser, broker: BrokerProcess
) -> None:
    show(page, "overview")
    show(page, "live")
    page.fill("Connect", Address=f"ws://127.0.0.1:{broker.ws}/mqtt", Client_id="templates")
    reads(page, "connected")
    page.fill("Subscribe", Topic_filter="many/#", At_most_QoS="2")
    reads(page, "subscription to many/#: acknowledged")
    page.fill(
        "Publish by MQTT",
        Topic="many/{n}",
        QoS="2",
        Times="3",
        Spelled_as="hex",
        Payload="08 96 01 12 07 74 65 73 74 69 6e 67",
        Response_topic="answers",
        Correlation_data="c-{n}",
        Expires_after_seconds="600",
    )
    reads(page, "message to many/3: acknowledged after")
    page.ask(
        "fill([...document.querySelectorAll('main label')].find((each) => "
        "each.innerText.startsWith('Show payloads')).querySelector('select'), 'protobuf')"
    )
    page.until("document.querySelectorAll('main td pre').length === 3")
    rows = cells(page, "The newest")
    assert [row[1] for row in rows] == ["many/3", "many/2", "many/1"]
    assert {row[2] for row in rows} == {"2"} and {row[3] for row in rows} == {
        '1: 150\n2: "testing"'
    }
    assert all("answer to answers, correlation c-{n}, expires in" in row[4] for row in rows)
    page.fill("Publish by MQTT", Payload="0")
    reads(page, "not sent: hex has two digits for each byte")
    page.ask("[...form('Publish by MQTT').querySelectorAll('input[type=checkbox]')].at(-1).click()")
    page.fill("Publish by MQTT", Topic="named/{uuid}", QoS="1", Times="1", Payload="00")
    page.until("document.querySelector('main a[href*=deliveries]')")
    looked_at(page, "live")
    page.ask("document.querySelector('main a[href*=deliveries]').click()")
    reads(page, "logged in the partition of its topic")


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


def test_a_kafka_group_is_behind_says_why_and_is_forgotten(
    page: Browser, broker: BrokerProcess
) -> None:
    address = f"127.0.0.1:{broker.kafka}"
    make_topic(address, "orders")
    produce_all(address, "orders", (f"order {number}" for number in range(10)))
    options: dict[str, object] = {"bootstrap.servers": address, "group.id": "billing"}
    consumer = Consumer(options | {"client.id": "app-1", "enable.auto.commit": False})
    consumer.subscribe(["orders"])
    until(lambda: consumer.poll(0.2) is None and len(consumer.assignment()) == 1, "it has joined")
    consumer.commit(offsets=[TopicPartition("orders", 0, 4)], asynchronous=False)
    show(page, "kafka")
    page.press("Why is billing behind?")
    reads(page, "app-1 has not committed 6 records of orders/0")
    assert cells(page, "Lag by partition") == [["orders", "0", "6", "4", "10", "node 1", "app-1"]]
    looked_at(page, "kafka")
    consumer.close()
    reads(page, "Nobody reads for it now.")
    page.press("Forget this group…")
    page.press("Leave it")
    assert [each["name"] for each in broker.page(KAFKA + "groups")["items"]] == ["billing"]
    page.press("Forget this group…")
    page.press("Forget it")
    reads(page, "The group billing is forgotten.")
    assert broker.page(KAFKA + "groups")["items"] == []


def test_a_kafka_topic_is_made_for_stock_clients_looked_into_and_deleted(
    page: Browser, broker: BrokerProcess
) -> None:
    address = f"127.0.0.1:{broker.kafka}"
    show(page, "kafka")
    page.fill("Create a topic", Topic_name="made", Partitions="3")
    reads(page, "The topic made is there.")
    produce_all(address, "made", ["one"], partitioner="random")
    known = AdminClient({"bootstrap.servers": address}).list_topics().topics
    assert len(known["made"].partitions) == 3
    page.press("made")
    reads(page, "Partitions, as this node's replicas have them")
    assert sum(int(row[4]) for row in cells(page, "Partitions, as")) == 1
    page.press("Why does partition 1 wait?")
    reads(page, "this replica leads in term")
    page.press("Delete this topic…")
    page.press("Delete it")
    reads(page, "The topic made is gone.")
    assert "made" not in [each["name"] for each in broker.page(KAFKA + "topics")["items"]]


def test_a_queue_s_dead_letter_is_seen_revived_moved_and_dropped(
    page: Browser, broker: BrokerProcess
) -> None:
    with connected(broker.amqp) as connection:
        send_all(connection, "jobs", *(f"job {number}" for number in range(3)))
        receiver = connection.create_receiver("jobs", credit=1)
        assert receiver.receive(timeout=60).body == "job 0"
        receiver.reject()
        receiver.close()
    show(page, "queues")
    page.press("Why do messages of jobs wait?")
    reads(page, "nobody receives from the queue, and 2 messages wait")
    reads(page, "1 dead letter: each says what it died of")
    page.press("Look at dead letters")
    reads(page, "job 0")
    looked_at(page, "queues")
    page.press("Revive all dead letters")
    reads(page, "1 of its dead letters are messages again.")
    page.fill("Create a queue", Queue_name="later")
    reads(page, "The queue later is there.")
    page.press("Look at messages")
    page.fill("Move messages", To_the_queue="later")
    reads(page, "3 messages are in later now.")
    page.press("later")
    reads(page, "job 2")
    page.press("Purge the messages…")
    page.press("Leave it")
    queue = "/v1/tenants/dev/queues/later"
    assert broker.page(queue)["messages"] == 3
    page.press("Purge the messages…")
    page.press("Drop them")
    reads(page, "3 messages of later are dropped.")
    assert broker.page(queue)["messages"] == 0


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


def publish_asking(broker: BrokerProcess, topic: str, payload: str) -> str:
    """Publish by a stock client that asks for a receipt, and return the id that it is told."""
    told: Queue[str] = Queue()
    client = paho.Client(CallbackAPIVersion.VERSION2, "asks", protocol=paho.MQTTv5)
    client.on_publish = lambda *said: told.put(dict(said[4].UserProperty)["quantum-receipt"])
    client.connect("127.0.0.1", broker.mqtt)
    client.loop_start()
    asks = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho has none
    asks.UserProperty = [("quantum-receipt", "")]
    client.publish(topic, payload, qos=1, properties=asks)
    try:
        return told.get(timeout=60)
    finally:
        client.disconnect()
        client.loop_stop()


def test_a_delivery_is_explained_followed_and_proven(page: Browser, broker: BrokerProcess) -> None:
    """A message for a session that is away: would it come, where is it, was it on disk."""
    body = {"filters": ["parcel/#"], "wait_ms": 0, "keep_seconds": 600}
    post(page, "/v1/tenants/dev/poll", body)
    sessions = broker.page("/v1/tenants/dev/sessions")["items"]
    client = next(each["client_id"] for each in sessions if each["subscriptions"] == 1)
    show(page, "deliveries")
    page.fill("Ask about a delivery", Topic="parcel/9", Client_id=client)
    reads(page, "gets it when it comes back, by its subscription parcel/#")
    page.fill("Ask about a delivery", Topic="letter/9", Client_id=client)
    reads(page, "none of its 1 subscriptions matches letter/9")
    reads(page, "stops it")
    message = publish_asking(broker, "parcel/9", "fragile")
    page.fill("Follow a past message", Message_id=message, For_which_client=client)
    reads(page, "wanted by its subscription parcel/#")
    page.until("[...document.querySelectorAll('td')].some((each) => each.innerText === 'queued')")
    page.fill("Get a receipt", Message_id=message)
    reads(page, "The receipt and the nodes' public keys are below")
    page.fill("Verify a receipt", Topic="parcel/9", Payload="fragile")
    reads(page, f"{message}: signed by the nodes 1, of the voters 1")
    page.until("[...document.querySelectorAll('.tag')].some((each) => each.innerText === 'proven')")
    looked_at(page, "deliveries")
    page.fill("Verify a receipt", Topic="parcel/9", Payload="broken")
    reads(page, "it is about another message: topic or payload differ")
    forged = "document.querySelector('form[aria-label=\\'Verify a receipt\\'] textarea')"
    page.ask(f'fill({forged}, {forged}.value.replace(\'"term": "\', \'"term": "9\'))')
    page.fill("Verify a receipt", Payload="fragile")
    reads(page, "node 1: the signature does not fit")
    post(page, f"/v1/tenants/dev/sessions/{client}/kick", {})


def test_a_backup_that_was_verified_is_seen_and_the_archive_behind_it(page: Browser) -> None:
    show(page, "care")
    reads(page, "How far the logs of this node are in file://")
    page.until(
        "[...document.querySelectorAll('.tag')].some((each) => each.innerText === 'verified')"
    )
    assert [row[1:] for row in cells(page, "The newest of")][-1] == ["verified", "the schedule"]
    looked_at(page, "care")


def test_every_other_page_of_the_api_can_be_read(page: Browser) -> None:
    show(page, "everything")
    page.ask("fill(document.querySelector('main select'), '/v1/tenants/{tenant_id}/ring')")
    page.fill("Ask /v1/tenants/{tenant_id}/ring")
    reads(page, '"settled": true')
    page.ask("fill(document.querySelector('main select'), '/v1/loglevel')")
    page.fill("Ask /v1/loglevel")
    reads(page, "clustor.node")


def comes(broker: BrokerProcess, password: str) -> bool:
    """Say whether a stock MQTT client comes in as ann."""
    heard: Queue[bool] = Queue()
    client = paho.Client(CallbackAPIVersion.VERSION2, "by-password")
    client.username_pw_set("ann", password)
    client.on_connect = lambda _client, _data, _flags, reason, _more: heard.put(
        not reason.is_failure
    )
    client.connect("127.0.0.1", broker.mqtt)
    client.loop_start()
    try:
        return heard.get(timeout=60)
    finally:
        client.disconnect()
        client.loop_stop()


def test_a_user_is_added_comes_by_every_password_s_way_and_is_removed(
    page: Browser, broker: BrokerProcess
) -> None:
    show(page, "users")
    twice = {"Password": "sécret", "The_same_again": "sécret"}
    page.fill("Add a user", User_name="ann", Password="sécret", The_same_again="other")
    reads(page, "The two passwords are not the same")
    page.fill("Add a user", User_name="ann", **twice)
    reads(page, "ann may connect; access rules name it user:ann.")
    page.fill("Add a user", User_name="bob", **twice)
    reads(page, "bob may connect; access rules name it user:bob.")
    until(lambda: comes(broker, "sécret"), "ann is let in")
    assert not comes(broker, "wrong")
    options: dict[str, str | int | float | bool] = {
        "bootstrap.servers": f"127.0.0.1:{broker.kafka}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ann",
        "sasl.password": "sécret",
    }
    assert AdminClient(options).list_topics(timeout=60).brokers
    rules = [
        {"effect": "Allow", "action": "Any", "filter": "#"},
        {"effect": "Deny", "action": "Consume", "resource": "Queue", "principal": "user:ann"},
    ]
    post(page, "/v1/tenants/dev/acls", {"expected_version": 0, "rules": rules}, "PUT")
    show(page, "overview")
    show(page, "users")
    reads(page, "is set")
    assert cells(page, "Version 1")[1] == ["2", "Deny", "user:ann", "Consume", "Queue all"]
    page.press("Why may ann do something, or not?")
    ask = {"Wants_to": "consume", "Kind": "queue", "Its_name": "jobs"}
    page.fill("Ask what a user may", **ask)
    reads(page, "access rule 2")
    looked_at(page, "users")
    assert "$scrypt" not in page.text() + json.dumps(broker.page("/v1/config/versions"))
    page.press("Remove the user ann")
    page.press("Remove it")
    reads(page, "ann is no user of dev any more.")
    page.until("!button('Remove the user ann') && button('Remove the user bob')")
    until(lambda: not comes(broker, "sécret"), "ann is refused")


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
