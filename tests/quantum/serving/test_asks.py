"""Commands asked of leaders elsewhere: answered once, by who was asked, or by nobody."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from clustor.control.command_gates import CommandGate
from quantum.broker.streams import InitProducer
from quantum.broker.streams.section import TRANSACTIONS, encode_stream_command
from quantum.mesh import link
from quantum.mesh.asks import Asks
from quantum.partition.leader import PartitionLeader

COMMAND = encode_stream_command(0, TRANSACTIONS, InitProducer(0, None, 0))


class FakeLinks:
    """The links of a node, whose other ends are a list."""

    def __init__(self) -> None:
        self.said: list[tuple[int, Any]] = []

    def say(self, node: int, said: link.Said, _size: int) -> None:
        self.said.append((node, said))

    def is_local(self, node: int | None) -> bool:
        return node == 1

    def knows(self, _node: int, _gate: CommandGate) -> bool:
        return True


class AskingBench:
    """A node that leads nothing: node 2 leads the one partition."""

    def __init__(self) -> None:
        self.links = FakeLinks()
        elsewhere = SimpleNamespace(leading=False, leader_node=2)
        self.asks = Asks("life", [cast("PartitionLeader", elsewhere)], self.links)
        self.told: list[bytes | None] = []
        self.asks.ask(0, COMMAND, self.told.append)
        [(node, self.asked)] = self.links.said
        assert node == 2

    def answer(self, peer: int, reply: bytes) -> None:
        said = link.AnsweredCommand("life", 0, self.asked.number, reply)
        self.asks.on_answered(peer, said)


@pytest.fixture
def bench() -> AskingBench:
    return AskingBench()


def test_who_was_asked_answers_once(bench: AskingBench) -> None:
    bench.answer(3, b"of another")
    assert bench.told == []
    bench.answer(2, b"first")
    bench.answer(2, b"second")
    assert bench.told == [b"first"] and bench.asks.open_bytes == 0


def test_a_link_that_lost_something_leaves_nobody_waiting(bench: AskingBench) -> None:
    bench.asks.link_anew(3)
    assert bench.told == []
    bench.asks.link_anew(2)
    bench.answer(2, b"late")
    assert bench.told == [None] and bench.asks.open_bytes == 0
