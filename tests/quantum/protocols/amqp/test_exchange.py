"""proton as the engine's twin: whatever is exchanged, both sides report the same states."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from quantum.protocols.amqp.engine import (
    AcceptedOutcome,
    Declared,
    DeclareReceived,
    DeliveryReceived,
    DischargeReceived,
    Event,
    TransactionalState,
)
from tests.quantum.protocols.amqp.exchange import Exchange, Pair


def run_all(seeds: range) -> None:
    print(f"seeds {seeds.start} to {seeds.stop - 1}")
    for seed in seeds:
        exchange = Exchange(seed)
        try:
            exchange.run()
        except Exception as error:
            error.add_note(f"seed {seed}, steps {exchange.log}")
            raise


@pytest.mark.parametrize("block", range(4))
def test_proton_and_the_engine_agree_on_every_state(block: int) -> None:
    run_all(range(block * 500, block * 500 + 500))


@pytest.mark.soak
def test_proton_and_the_engine_agree_on_every_state_a_hundred_thousand_times() -> None:
    run_all(range(100_000))


class _Transacting(Exchange):
    """The client controls a transaction over a coordinator link."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.commands: list[Event] = []
        self.work: list[DeliveryReceived] = []

    def _on_event(self, event: Event) -> None:
        if isinstance(event, DeclareReceived | DischargeReceived):
            self.commands.append(event)
        elif isinstance(event, DeliveryReceived):
            self.work.append(event)
        else:
            super()._on_event(event)


def _send(link: Any, tag: str, body: proton.Message, state: Any = None) -> Any:
    delivery = link.delivery(tag)
    if state is not None:
        delivery.local.data = state
        delivery.update(0x34)
    link.stream(body.encode())
    link.advance()
    return delivery


def test_proton_declares_posts_and_discharges_a_transaction() -> None:
    exchange = _Transacting()
    exchange.client.open()
    exchange.begin()
    session = exchange.sessions[0][0]
    control = session.sender("control")
    control.target.type = proton.Terminus.COORDINATOR
    posting = session.sender("posting")
    posting.target.address = "queue"
    for link in (control, posting):
        exchange.pairs[link.name] = Pair(link.name, link)
        link.open()
    exchange.pump()
    for pair in exchange.pairs.values():
        assert pair.server is not None
        pair.server.grant(10)
    exchange.pump()
    ours = exchange.sessions[0][1]

    declare = proton.Described(proton.ulong(0x31), [None])
    declaring = _send(control, "declare", proton.Message(body=declare, inferred=False))
    exchange.pump()
    command = exchange.commands.pop()
    assert isinstance(command, DeclareReceived)
    assert command.global_id is None
    ours.settle([command.delivery_id], Declared(b"txn-1"))
    exchange.pump()
    assert declaring.remote_state == 0x33
    assert declaring.remote.data == [b"txn-1"]

    _send(posting, "work", proton.Message(body="x"), [b"txn-1"])
    exchange.pump()
    work = exchange.work.pop()
    assert work.state == TransactionalState(b"txn-1", None)
    ours.settle([work.delivery_id], TransactionalState(b"txn-1", AcceptedOutcome()), settled=False)

    discharge = proton.Described(proton.ulong(0x32), [b"txn-1", False])
    discharging = _send(control, "discharge", proton.Message(body=discharge, inferred=False))
    exchange.pump()
    command = exchange.commands.pop()
    assert isinstance(command, DischargeReceived)
    assert (command.txn_id, command.fail) == (b"txn-1", False)
    ours.settle([command.delivery_id], AcceptedOutcome())
    exchange.pump()
    assert discharging.remote_state == proton.Delivery.ACCEPTED
    assert not exchange.faults
