"""Messages by request, without a disk or a network: bounds, cursors, and what ends a request."""

from __future__ import annotations

import asyncio

import pytest

from quantum.node import messages
from quantum.node.inner_client import ClientLost
from quantum.node.messages import (
    AT_ONCE_MAX,
    BadCursor,
    MessageCaller,
    Messages,
    TooManyAtOnce,
    _read_cursor,
    _write_cursor,
)
from quantum.protocols.mqtt.codec import Publish, TopicName
from tests.quantum.serving.lab import TENANT, Lab

CALLER = MessageCaller(TENANT, "spiffe://dev/operator", encrypted=False)
NAME = "rest-" + "0" * 24


def message() -> Publish:
    return Publish(TopicName(b"a"), b"x", 1)


async def carried(lab: Lab, messages: Messages) -> bool:
    """Publish while the lab's turns go on."""
    task = asyncio.create_task(messages.publish(CALLER, message()))
    while not task.done():
        await asyncio.sleep(0)
        lab.settle()
    return await task


def test_a_publish_is_answered_when_the_log_has_it_and_leaves_nothing_behind() -> None:
    lab = Lab()
    assert asyncio.run(carried(lab, Messages(lab.service)))
    assert lab.service.mqtt.connections == 0
    assert not lab.service.mqtt.tenants[TENANT].connected()


def test_no_leader_is_no_answer_in_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "ANSWER_SECONDS_MAX", 0.01)
    lab = Lab()
    lab.lead(leads=False)
    with pytest.raises(ClientLost):
        asyncio.run(carried(lab, Messages(lab.service)))
    assert lab.service.mqtt.connections == 0


def test_as_many_at_once_as_a_node_takes_and_no_more() -> None:
    lab = Lab()

    async def story() -> None:
        found = Messages(lab.service)
        tasks = [asyncio.create_task(found.publish(CALLER, message())) for _ in range(AT_ONCE_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyAtOnce):
            await found.publish(CALLER, message())
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            lab.settle()
        assert all(await asyncio.gather(*tasks))

    asyncio.run(story())
    assert asyncio.run(carried(lab, Messages(lab.service))), "and again when they are over"


@pytest.mark.parametrize("ids", [[], [1], [1, 2, 65_535], list(range(1, 1001))], ids=len)
def test_a_cursor_says_what_it_was_made_of(ids: list[int]) -> None:
    assert _read_cursor(_write_cursor(NAME, ids)) == (NAME, tuple(ids))


@pytest.mark.parametrize("text", ["", "x", NAME, f"{NAME}.A", f"{NAME}.AQ", f"other-{NAME}.AAE"])
def test_what_no_answer_named_is_no_cursor(text: str) -> None:
    with pytest.raises(BadCursor):
        _read_cursor(text)
