"""Transports on real loopback connections: packets arrive, strangers do not."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from clustor import wire as w
from clustor.runtime.errors import PortTaken
from clustor.runtime.peers.reception import PeerReception
from clustor.runtime.peers.transport import Address, Transport
from clustor.runtime.pki.identity import (
    ClusterId,
    DevelopmentAuthority,
    NodeId,
    create_authority,
    issue_node,
    utc_now,
)
from tests.clustor.runtime.waiting import free_ports, until

CLUSTER = ClusterId("dev")


def free_address() -> Address:
    return Address("127.0.0.1", free_ports(1)[0])


class Peer:
    """A transport, its address, and the packets it received."""

    def __init__(self, pki: Path, node: int, cluster: ClusterId = CLUSTER) -> None:
        self.node = NodeId(node)
        self.address = free_address()
        self.received: list[tuple[NodeId, w.Packet]] = []
        jitter = random.Random(node).random
        self.lost: list[NodeId] = []
        self.transport = Transport(
            cluster,
            self.node,
            pki,
            on_packet=self._on_packet,
            on_lost=self.lost.append,
            jitter=jitter,
        )

    def _on_packet(self, peer: NodeId, packet: w.Packet) -> None:
        self.received.append((peer, packet))

    def send(self, other: Peer, *packets: w.Packet) -> None:
        for packet in packets:
            self.transport.send(other.node, packet)
        self.transport.flush()


class World:
    """Peers with certificates of one authority, closed at the end of a test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.authority = create_authority(root / "ca", CLUSTER, utc_now())
        self.peers: list[Peer] = []

    def certificate(self, node: int, authority: DevelopmentAuthority | None = None) -> Path:
        pki = self.root / f"pki-{node}-{len(self.peers)}"
        issue_node(authority or self.authority, NodeId(node), pki, utc_now())
        return pki

    async def peer(self, node: int, pki: Path | None = None) -> Peer:
        peer = Peer(pki or self.certificate(node), node)
        self.peers.append(peer)
        await peer.transport.listen(peer.address)
        return peer


@asynccontextmanager
async def world(root: Path) -> AsyncIterator[World]:
    made = World(root)
    try:
        yield made
    finally:
        for peer in made.peers:
            await peer.transport.close()


def packet(source: int, target: int, data: bytes = b"") -> w.Packet:
    route = w.PacketRoute(
        w.PartitionId(1),
        w.ReplicaId(source),
        w.ReplicaId(target),
        w.Term(3),
        w.DurabilityModeEpoch(0),
    )
    return w.Packet(route, w.SnapshotTransfer(data))


async def both_connected(one: Peer, two: Peer) -> None:
    one.transport.connect(two.node, two.address)
    two.transport.connect(one.node, one.address)
    await until(
        lambda: two.node in one.transport.connected() and one.node in two.transport.connected(),
        "both are connected",
    )


async def test_packets_of_all_sizes_arrive_in_order(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        one, two = await made.peer(1), await made.peer(2)
        await both_connected(one, two)
        sizes = [0, 1, 100, 65_000, 70_000, 1 << 20, 3 << 20, 5]
        sent = [packet(1, 2, bytes([nth]) * size) for nth, size in enumerate(sizes)]
        one.send(two, *sent)
        two.send(one, packet(2, 1, b"back"))
        await until(lambda: len(two.received) == len(sent), "everything arrived")
        await until(lambda: len(one.received) == 1, "the other way too")
        assert [peer for peer, _ in two.received] == [1] * len(sent)
        assert [found.message.data for _, found in two.received] == [  # type: ignore[union-attr]  # all are transfers
            each.message.data  # type: ignore[union-attr]  # as above
            for each in sent
        ]


async def test_a_turn_is_one_write_however_many_groups_spoke(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        one, two = await made.peer(1), await made.peer(2)
        await both_connected(one, two)
        line = one.transport._lines[two.node]
        assert line._connection is not None
        writes: list[int] = []
        write = line._connection.write_pieces

        def counted(pieces: list[w.Buffer]) -> None:
            writes.append(len(pieces))
            write(pieces)

        line._connection.write_pieces = counted  # type: ignore[method-assign]  # and passes on
        groups = [replace(packet(1, 2).route, partition_id=w.PartitionId(n)) for n in range(100)]
        one.send(two, *(w.Packet(route, w.TimeoutNowBody()) for route in groups))
        await until(lambda: len(two.received) == 100, "everything arrived")
        assert len(writes) == 1


async def test_a_connection_that_ends_is_dialled_again(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        one, two = await made.peer(1), await made.peer(2)
        await both_connected(one, two)
        for inbound in list(two.transport._inbound):
            inbound.close()
        await until(lambda: two.node not in one.transport.connected(), "it ended")
        assert one.lost == [two.node]
        assert two.lost == [one.node]
        await until(lambda: two.node in one.transport.connected(), "it is back")
        one.send(two, packet(1, 2, b"again"))
        await until(lambda: len(two.received) == 1, "it arrived")


async def test_what_finds_no_connection_is_lost_and_not_kept(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        one, two = await made.peer(1), await made.peer(2)
        one.transport.connect(NodeId(3), free_address())
        one.transport.send(NodeId(3), packet(1, 3))
        one.transport.send(two.node, packet(1, 2))
        one.transport.flush()
        assert len(one.transport._lines[NodeId(3)]._queue) == 0


async def test_a_peer_with_another_nodes_certificate_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with world(tmp_path) as made:
        one = await made.peer(1)
        impostor = await made.peer(2, made.certificate(3))
        one.transport.connect(impostor.node, impostor.address)
        await until(lambda: "the peer is another node" in caplog.text, "the refusal is named")
        assert one.transport.connected() == []


async def test_a_foreign_authority_is_refused_and_both_sides_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with world(tmp_path) as made:
        foreign = create_authority(tmp_path / "foreign", CLUSTER, utc_now())
        stranger = await made.peer(2, made.certificate(2, foreign))
        one = await made.peer(1)
        one.transport.connect(stranger.node, stranger.address)
        stranger.transport.connect(one.node, one.address)
        await until(
            lambda: caplog.text.count("an unknown authority") >= 2,
            "the refusals are named",
        )
        assert one.transport.connected() == stranger.transport.connected() == []


async def test_a_node_that_speaks_for_another_is_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path) as made:
        one, two = await made.peer(1), await made.peer(2)
        await both_connected(one, two)
        one.send(two, packet(1, 2, b"mine"), packet(3, 2, b"forged"), packet(1, 2, b"after"))
        await until(lambda: "a node spoke for another" in caplog.text, "the refusal is named")
        data = [found.message.data for _, found in two.received]  # type: ignore[union-attr]  # all are transfers
        assert data == [b"mine"]


async def test_a_stranger_without_tls_gets_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        one = await made.peer(1)
        reader, writer = await asyncio.open_connection(one.address.host, one.address.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 10)
        assert b"HTTP" not in answer  # a TLS alert at the most
        writer.close()


async def test_a_taken_port_is_one_typed_error(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        one = await made.peer(1)
        two = Peer(made.certificate(2), 2)
        with pytest.raises(PortTaken):
            await two.transport.listen(one.address)
        await two.transport.close()


def hello(handshake: w.Handshake | None = None) -> bytes:
    body = w.encode_handshake(handshake or w.local_handshake())
    return w.encode_frame(body, body_bytes_max=w.EXPLAIN_BODY_BYTES_MAX)


@pytest.mark.parametrize("step", [1, 7, 4096])
def test_a_stream_is_understood_however_its_bytes_arrive(step: int) -> None:
    received: list[w.Packet] = []
    reception = PeerReception(received.append)
    sent = [packet(1, 2, bytes(size)) for size in (3, 200, 70_000)]
    dialect = w.negotiate(w.local_handshake(), w.local_handshake()).dialect
    stream = hello() + b"".join(
        len(body).to_bytes(4, "little") + body for body in w.encode_batches(sent, dialect)
    )
    for start in range(0, len(stream), step):
        reception.receive(stream[start : start + step])
    assert [each.message.data for each in received] == [  # type: ignore[union-attr]  # all are transfers
        each.message.data  # type: ignore[union-attr]  # as above
        for each in sent
    ]


def test_a_frame_beyond_the_dialect_is_refused_after_what_came_before_it() -> None:
    received: list[w.Packet] = []
    reception = PeerReception(received.append)
    dialect = w.negotiate(w.local_handshake(), w.local_handshake()).dialect
    good = b"".join(w.encode_batches([packet(1, 2, b"good")], dialect))
    stream = hello() + len(good).to_bytes(4, "little") + good
    with pytest.raises(w.WireBodyTooLarge):
        reception.receive(stream + (dialect.body_bytes_max + 1).to_bytes(4, "little"))
    assert len(received) == 1


def test_a_peer_of_another_major_version_is_refused() -> None:
    other = replace(w.local_handshake(), catalog_version=w.CatalogVersion(1, 1))
    with pytest.raises(w.WireCatalogMismatch):
        PeerReception(lambda _: None).receive(hello(other))


def test_nothing_is_read_before_the_handshake() -> None:
    body = w.encode_packet(packet(1, 2, b"early"))
    with pytest.raises(w.WireUnknownField):
        PeerReception(lambda _: None).receive(len(body).to_bytes(4, "little") + body)


def test_a_first_frame_larger_than_a_handshake_is_refused_at_once() -> None:
    with pytest.raises(w.WireBodyTooLarge):
        PeerReception(lambda _: None).receive((1 << 20).to_bytes(4, "little"))
