"""The load generator against a broker of a few lines: it counts right, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from quantum.client import ConnectionLost, Endpoint, Unreachable
from quantum.client.load import LoadPlan, LoadRun, percentile
from quantum.edge.listener import Listener
from quantum.edge.lobby import Lobby
from quantum.edge.ports import ConnectionPeer, WirePort
from quantum.protocols.mqtt.codec import (
    Connack,
    Connect,
    Direction,
    PacketReader,
    ProtocolVersion,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    SubscribePacket,
    decode_packet,
    encode_packet,
)

V5 = ProtocolVersion.V5
LONGER = (1, 10, 50)
"""How many times longer a load lasts: a machine may stand still for all of a short one."""


class TinyBroker:
    """Acknowledges everything, and delivers nothing."""

    publishes = 0
    refusals = 0
    cut_after = 1 << 60

    def opened(self, wire: WirePort, peer: ConnectionPeer) -> None:
        self.wire = wire
        self.reader = PacketReader(1 << 20)

    def received(self, data: bytes) -> None:
        self.reader.receive(data)
        while (found := self.reader.next_packet()) is not None:
            packet = decode_packet(*found, V5, direction=Direction.TO_SERVER)
            if isinstance(packet, Connect):
                self.wire.write(encode_packet(Connack(), V5))
            elif isinstance(packet, SubscribePacket):
                self.wire.write(encode_packet(Suback(packet.packet_id, (ReasonCode(0),)), V5))
            elif isinstance(packet, Publish):
                self._on_publish(packet)
            elif isinstance(packet, Pubrel):
                self.wire.write(encode_packet(Pubcomp(packet.packet_id), V5))

    def _on_publish(self, packet: Publish) -> None:
        TinyBroker.publishes += 1
        if TinyBroker.publishes > TinyBroker.cut_after:
            self.wire.abort()
        elif packet.qos == 1:
            self.wire.write(encode_packet(Puback(packet.packet_id), V5))
        elif packet.qos == 2:
            self.wire.write(encode_packet(Pubrec(packet.packet_id), V5))

    def writable_again(self) -> None:
        pass

    def lost(self) -> None:
        pass


@asynccontextmanager
async def tiny_broker(cut_after: int = 1 << 60) -> AsyncIterator[Endpoint]:
    TinyBroker.publishes, TinyBroker.cut_after = 0, cut_after
    lobby = Lobby()
    listener = Listener("mqtt", lobby, TinyBroker, tenant="dev")
    await listener.start("127.0.0.1", 0)
    try:
        yield Endpoint("127.0.0.1", listener.port)
    finally:
        await listener.close()
        lobby.close()


@pytest.mark.parametrize("qos", [1, 2])
async def test_every_publish_is_acknowledged_and_timed(qos: int) -> None:
    for times in LONGER:
        seen: list[int] = []
        async with tiny_broker() as endpoint:
            plan = LoadPlan(publishers=5, subscribers=1, qos=qos, seconds=0.2 * times)
            load = LoadRun(endpoint, plan)
            await load.run(lambda now: seen.append(now.counts.sent), every_seconds=0.05)  # noqa: B023
        counts = load.counts
        assert counts.sent == counts.acknowledged == TinyBroker.publishes
        assert len(counts.latencies) == counts.acknowledged
        assert counts.lost_connections == counts.refused == 0
        assert seen == sorted(seen)
        if counts.sent > 50 and len(seen) >= 2:
            return
    raise AssertionError("next to nothing was sent")


async def test_qos_0_is_bounded_by_the_network_and_arrives() -> None:
    for times in LONGER:
        async with tiny_broker() as endpoint:
            load = LoadRun(endpoint, LoadPlan(publishers=2, qos=0, seconds=0.1 * times))
            await load.run(lambda _now: None)
            async with asyncio.timeout(180):
                while TinyBroker.publishes < load.counts.sent:
                    await asyncio.sleep(0.01)
        assert load.counts.sent == TinyBroker.publishes
        if load.counts.sent > 100:
            return
    raise AssertionError("next to nothing was sent")


async def test_a_rate_is_kept() -> None:
    for times in LONGER:
        async with tiny_broker() as endpoint:
            load = LoadRun(endpoint, LoadPlan(publishers=3, per_second=500, seconds=0.4 * times))
            await load.run(lambda _now: None)
        assert load.counts.sent <= 500 * load.elapsed + 1
        assert load.counts.acknowledged == load.counts.sent
        if load.counts.sent > 50:
            return
    raise AssertionError("next to nothing was sent")


async def test_a_broker_that_cuts_us_ends_the_run() -> None:
    async with tiny_broker(cut_after=20) as endpoint:
        load = LoadRun(endpoint, LoadPlan(publishers=1, seconds=250))
        await asyncio.wait_for(load.run(lambda _now: None), 200)
    assert load.counts.lost_connections == 1
    assert load.counts.acknowledged <= 20


async def test_nobody_there() -> None:
    async with tiny_broker() as endpoint:
        pass
    with pytest.raises((Unreachable, ConnectionLost), match="nothing listens"):
        await LoadRun(endpoint, LoadPlan(publishers=1)).run(lambda _now: None)


@pytest.mark.parametrize(("share", "value"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.0, 1.0)])
def test_percentiles(share: float, value: float) -> None:
    assert percentile([float(number) for number in range(1, 101)], share) == value
    assert percentile([], share) == 0.0
