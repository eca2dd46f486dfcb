"""Kafka below `/v1`: topics, groups, lags and why, as stock clients made them; and orders."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from confluent_kafka import Consumer, TopicPartition
from hypothesis import HealthCheck, Phase, settings

from quantum.admin import document
from quantum.admin.table_kafka import KAFKA
from quantum.cli.admin_api import AdminApi, Told
from tests.interop.broker_process import BrokerProcess
from tests.interop.kafka_clients import make_topic, produce_all
from tests.quantum.admin.test_openapi import CHECKS

TOPICS, GROUPS = "/v1/tenants/dev/kafka/topics", "/v1/tenants/dev/kafka/groups"
DEADLINE_SECONDS = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("kafka") / "data", partitions=2) as found:
        yield found


def ask(broker: BrokerProcess, method: str, path: str, body: object = None) -> Told:
    return AdminApi(broker.admin).ask(method, path, body=body)


def kafka(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.kafka}"


def consumer_of(broker: BrokerProcess, group: str) -> Any:
    options: dict[str, object] = {"bootstrap.servers": kafka(broker), "client.id": "app-1"}
    options |= {"group.id": group}
    options |= {"auto.offset.reset": "earliest", "enable.auto.commit": False}
    return Consumer(options)


def take(consumer: Any, count: int) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while count:
        assert time.monotonic() < deadline, "the records never came"
        message = consumer.poll(0.5)
        count -= message is not None and message.error() is None


def test_a_topic_of_a_stock_client_is_shown_with_its_partitions(broker: BrokerProcess) -> None:
    make_topic(kafka(broker), "orders", 3, **{"retention.ms": "3600000"})
    produce_all(kafka(broker), "orders", (f"v{number}" for number in range(30)))
    row = next(each for each in broker.page(TOPICS)["items"] if each["name"] == "orders")
    assert (row["kind"], row["partition_count"], row["records"]) == ("topic", 3, "30")
    shown = broker.page(f"{TOPICS}/orders")
    assert sum(int(each["end"]) - int(each["start"]) for each in shown["partitions"]) == 30
    assert [each["leader"] for each in shown["partitions"]] == [1, 1, 1]
    assert shown["configs"] == {"retention.ms": "3600000"}
    groups = {each["group"] for each in broker.page("/v1/broker/status")["partitions"]}
    assert {each["group"] for each in shown["partitions"]} <= groups


def test_a_group_has_members_lags_and_a_reason_and_is_forgotten(broker: BrokerProcess) -> None:
    make_topic(kafka(broker), "bills")
    produce_all(kafka(broker), "bills", (f"v{number}" for number in range(10)))
    consumer = consumer_of(broker, "billing/a")
    consumer.subscribe(["bills"])
    take(consumer, 10)
    consumer.commit(offsets=[TopicPartition("bills", 0, 4)], asynchronous=False)
    path = f"{GROUPS}/billing%2Fa"
    shown = broker.page(path)
    assert (shown["state"], shown["member_count"], shown["lag"]) == ("Stable", 1, "6")
    (member,) = shown["members"]
    assert (member["client_id"], member["partitions"]) == ("app-1", ["bills/0"])
    (row,) = shown["partitions"]
    assert (row["committed"], row["end"], row["lag"]) == ("4", "10", "6")
    assert row["member_id"] == member["member_id"]
    assert [each["clause"] for each in broker.page(f"{path}/why")["causes"]] == ["MemberBehind"]
    assert ask(broker, "POST", f"{path}/delete", {}).code == 409  # it has a member
    consumer.close()
    assert [each["clause"] for each in broker.page(f"{path}/why")["causes"]] == ["NoMembers"]
    assert ask(broker, "POST", f"{path}/delete", {}).code == 200
    assert "billing/a" not in [each["name"] for each in broker.page(GROUPS)["items"]]
    assert ask(broker, "GET", path).code == 404


def test_a_topic_is_made_and_ended_by_request(broker: BrokerProcess) -> None:
    body = {"name": "made", "partition_count": 2, "configs": {"retention.ms": "60000"}}
    assert ask(broker, "POST", TOPICS, body).code == 200
    assert ask(broker, "POST", TOPICS, body).code == 409
    produce_all(kafka(broker), "made", ["one"])
    assert broker.page(f"{TOPICS}/made")["records"] == "1"
    for wrong in ({"name": "no topic"}, {"name": "t", "configs": {"retention.ms": "soon"}}):
        assert ask(broker, "POST", TOPICS, wrong).code == 400
    assert ask(broker, "POST", f"{TOPICS}/made/delete", {}).code == 200
    assert ask(broker, "GET", f"{TOPICS}/made").code == 404
    assert ask(broker, "POST", f"{TOPICS}/made/delete", {}).code == 404


def test_lists_come_by_pages(broker: BrokerProcess) -> None:
    for name in ("page-a", "page-b", "page-c"):
        assert ask(broker, "POST", TOPICS, {"name": name}).code == 200
    first = broker.page(f"{TOPICS}?limit=2&after=page-")
    rest = broker.page(f"{TOPICS}?limit=2&after={first['after']}")
    rows = [*first["items"], *rest["items"]]
    assert [each["name"] for each in rows] == ["page-a", "page-b", "page-c"]
    assert rest["after"] is None


DOCUMENT = schemathesis.openapi.from_dict(json.loads(document(KAFKA)))


@DOCUMENT.parametrize()
@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_what_is_served_is_what_is_documented(case: Any, broker: BrokerProcess) -> None:
    if isinstance(case.path_parameters, dict):
        case.path_parameters["tenant_id"] = "dev"
    case.call_and_validate(base_url=f"http://{broker.admin}", checks=CHECKS)
