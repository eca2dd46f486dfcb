"""Inputs for real listeners: real conversations, mutated, dripped, cut and half closed.

    python -m tests.interop.fuzz_inputs TARGETS SEED FIRST COUNT

`TARGETS` is a JSON file of what is listened on. Every input is drawn from its seed and its number
alone, so one of them is repeated by `SEED NUMBER 1`. Prints how many inputs were said, by kind.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import socket
import ssl
import struct
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from clustor import wire as w
from clustor.kv import Get, Key, Put, ReadRange, encode_command
from clustor.runtime.kv.stream import NEVER_REACHED, KvOperation, WatchRequest, encode_request
from quantum.protocols.mqtt.codec import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    PacketId,
    Pingreq,
    Properties,
    ProtocolVersion,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    SubscribePacket,
    Subscription,
    TopicFilter,
    TopicName,
    UnsubscribePacket,
    Will,
    encode_packet,
)
from quantum.protocols.mqtt.codec.types import ClientId

HOST: Final = "127.0.0.1"
AT_ONCE: Final = 96
ANSWER_SECONDS: Final = 0.05
"""For so long an answer is waited for before the input goes on, or ends."""
KINDS: Final = ("mqtt", "ws", "mqtts", "mqtts raw", "admin", "kv", "peer", "peer raw")
_TELLING: Final = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF, 0x0A, 0x0D, 0x20, 0x25, 0x5B)
_PIECES_MAX: Final = 12
_MASK: Final = b"\x11\x22\x33\x44"


@dataclass(frozen=True, slots=True)
class Targets:
    """Where a node listens, and what is shown to its TLS ports."""

    mqtt: int
    ws: int
    mqtts: int
    admin: int
    peer: int
    client: tuple[str, str, str]
    """Files: a client's certificate, its key, its authority."""
    node: tuple[str, str, str]
    """The same of a node that is no member."""

    def port(self, kind: str) -> int:
        named = {"mqtts raw": self.mqtts, "kv": self.admin, "peer raw": self.peer}
        return named[kind] if kind in named else int(getattr(self, kind))


@dataclass(frozen=True, slots=True)
class Planned:
    """One input: what is said, in which pieces, how slowly, and how it ends."""

    kind: str
    pieces: list[bytes]
    pauses: list[float]
    ending: str
    shown: str = field(default="")


# Conversations, as clients have them.


def mqtt_conversation(rng: random.Random) -> list[bytes]:
    """Connect, and say some of what the standard lets a client say."""
    version = rng.choice([ProtocolVersion.V31, ProtocolVersion.V311, ProtocolVersion.V5])
    is_v5 = version is ProtocolVersion.V5
    more = (
        Properties(
            session_expiry_interval=rng.choice([0, 1]), receive_maximum=rng.choice([1, 65_535])
        )
        if is_v5
        else Properties()
    )
    will = Will(TopicName(b"fuzz/will"), b"gone", rng.randrange(3)) if rng.random() < 0.3 else None
    name = ClientId(f"fuzz{rng.randrange(50)}")
    said: list[Packet] = [
        Connect(
            version,
            name,
            keep_alive=60,
            will=will,
            user_name="user",
            password=b"word",
            properties=more,
        )
    ]
    said += [
        _packet(rng, number, is_v5=is_v5) for number in range(1, rng.randrange(2, _PIECES_MAX))
    ]
    return [encode_packet(each, version) for each in said]


def _packet(rng: random.Random, number: int, *, is_v5: bool) -> Packet:
    packet_id = PacketId(number)
    topic = b"/".join(
        [b"fuzz", *rng.sample([b"a", b"b", b"\xc3\xa9", b"x" * 60], rng.randrange(1, 4))]
    )
    match rng.randrange(9):
        case 0:
            filters = [b"fuzz/#", b"fuzz/+/b", b"$share/g/fuzz/a", b"fuzz/a"]
            chosen = rng.sample(filters, rng.randrange(1, 4))
            return SubscribePacket(
                packet_id, tuple(Subscription(TopicFilter(f), rng.randrange(3)) for f in chosen)
            )
        case 1:
            return UnsubscribePacket(packet_id, (TopicFilter(b"fuzz/#"),))
        case 2:
            return Pingreq()
        case 3:
            acks: list[Packet] = [Puback(packet_id), Pubrec(packet_id), Pubrel(packet_id)]
            return rng.choice(acks)
        case 4 if is_v5:
            return Auth(ReasonCode.RE_AUTHENTICATE, Properties(authentication_method="t"))
        case 5:
            return Disconnect()
        case _:
            qos = rng.randrange(3)
            payload = rng.randbytes(rng.choice([0, 1, 40, 3000]))
            more = (
                Properties(topic_alias=rng.randrange(1, 4))
                if is_v5 and rng.random() < 0.2
                else Properties()
            )
            return Publish(
                TopicName(topic),
                payload,
                qos,
                rng.random() < 0.1,
                packet_id=packet_id if qos else PacketId(0),
                properties=more,
            )


def websocket_conversation(rng: random.Random) -> list[bytes]:
    head = (
        b"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    return [head, *(_masked(rng, each) for each in mqtt_conversation(rng))]


def _masked(rng: random.Random, data: bytes) -> bytes:
    opcode = 0x80 | rng.choice([2, 2, 2, 2, 0, 1, 8, 9, 10])
    size = len(data)
    length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + struct.pack(">H", size)
    body = bytes(byte ^ _MASK[at % 4] for at, byte in enumerate(data))
    return bytes((opcode,)) + length + _MASK + body


_TARGETS: Final = (
    "/status", "/metrics", "/healthz", "/readyz", "/v1/broker/status", "/groups/1/why", "/kv",
    "/v1/cluster/state", "/v1/nodes?limit=2", "/openapi.json", "/incidents?after=0",
    "/.well-known/wide-int-registry", "/clients/fuzz1/why", "/v1/audit?limit=5", "/nothing/[",
)  # fmt: skip
_BODIES: Final = (
    b'{"node_id": 1}', b'{"kind": "add", "node_id": 77}', b'{"paused": true}', b"{}", b"[[[[]]]]",
    b'{"command": {"kind": "DrainNode", "node_id": 77, "draining": true}, "request_id": "f"}',
)  # fmt: skip


def admin_conversation(rng: random.Random) -> list[bytes]:
    if rng.random() < 0.6:
        line, body = f"GET {rng.choice(_TARGETS)}", b""
    else:
        pages = [
            "/groups/1/leader",
            "/groups/1/members",
            "/groups/1/pause",
            "/control/call",
            "/v1/tenants",
        ]
        line, body = f"POST {rng.choice(pages)}", rng.choice(_BODIES)
    headers = ["Host: 127.0.0.1", "Accept: */*", "User-Agent: fuzz"]
    if body:
        headers += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return ["\r\n".join((f"{line} HTTP/1.1", *headers, "", "")).encode(), body]


def kv_conversation(rng: random.Random) -> list[bytes]:
    head = (
        b"GET /kv HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: clustor-kv\r\n\r\n"
    )
    key = Key(b"fuzz/%d" % rng.randrange(20))
    said = [head]
    for number in range(1, rng.randrange(2, _PIECES_MAX)):
        match rng.randrange(5):
            case 0:
                wanted = msgspec.msgpack.encode(
                    WatchRequest(0, [b"fuzz/"], rng.randrange(3), NEVER_REACHED)
                )
                said.append(encode_request(number, 1, KvOperation.WATCH, wanted))
            case 1:
                said.append(encode_request(max(1, number - 1), 1, KvOperation.CANCEL, b""))
            case 2:
                said.append(
                    encode_request(number, 1, KvOperation.COMMAND, encode_command(Get(key)))
                )
            case 3:
                asked = encode_command(ReadRange(b"fuzz/", None, 10))
                said.append(encode_request(number, rng.choice([1, 2]), KvOperation.COMMAND, asked))
            case _:
                put = encode_command(Put(key, rng.randbytes(rng.choice([0, 20, 2000]))))
                said.append(encode_request(number, 1, KvOperation.COMMAND, put))
    return said


def peer_conversation(rng: random.Random) -> list[bytes]:
    """Shake hands, and speak to groups and services that are not there."""
    hello = w.encode_frame(
        w.encode_handshake(w.local_handshake()), body_bytes_max=w.EXPLAIN_BODY_BYTES_MAX
    )
    packets = []
    for _ in range(rng.randrange(1, _PIECES_MAX)):
        route = w.PacketRoute(
            w.PartitionId(rng.choice([900, 901, 1_000_001])),
            w.ReplicaId(9),
            w.ReplicaId(1),
            w.Term(rng.randrange(4)),
            w.DurabilityModeEpoch(0),
        )
        packets.append(w.Packet(route, w.ServiceMessage(rng.randbytes(rng.randrange(60)))))
    said = [hello]
    for packet in packets:
        said += [len(body).to_bytes(4, "little") + body for body in w.encode_batches([packet])]
    return said


def client_hello(_rng: random.Random) -> list[bytes]:
    """Begin a TLS handshake as a client does, and say the rest as it comes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    pipe = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        pipe.do_handshake()
    return [outgoing.read(), b"\x14\x03\x03\x00\x01\x01", b"\x17\x03\x03\x00\x20" + bytes(32)]


CONVERSATIONS: Final[dict[str, Callable[[random.Random], list[bytes]]]] = {
    "mqtt": mqtt_conversation,
    "ws": websocket_conversation,
    "mqtts": mqtt_conversation,
    "mqtts raw": client_hello,
    "admin": admin_conversation,
    "kv": kv_conversation,
    "peer": peer_conversation,
    "peer raw": client_hello,
}


# What becomes of them.


def mutate(rng: random.Random, pieces: list[bytes]) -> list[bytes]:
    """Change a little here and there; one in ten stays as it is."""
    found = list(pieces)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3, 5, 9, 20])):
        at = rng.randrange(len(found))
        match rng.randrange(10):
            case 0:
                found[at] = found[at][: rng.randrange(len(found[at]) + 1)]
            case 1:
                found.insert(at, found[at])
            case 2:
                other = rng.randrange(len(found))
                found[at], found[other] = found[other], found[at]
            case 3:
                found[at] += rng.randbytes(rng.choice([1, 4, 200]))
            case 4:
                found[at] = found[at] * rng.choice([2, 3, 30])
            case _:
                found[at] = _with_other_bytes(rng, found[at])
    return found


def _with_other_bytes(rng: random.Random, piece: bytes) -> bytes:
    if not piece:
        return piece
    changed = bytearray(piece)
    at = rng.randrange(min(len(changed), rng.choice([4, 16, 4096])))
    match rng.randrange(4):
        case 0:
            changed[at] ^= 1 << rng.randrange(8)
        case 1:
            changed[at] = rng.choice(_TELLING)
        case 2:
            del changed[at : at + rng.randrange(1, 9)]
        case _:
            changed[at : at + 2] = rng.randbytes(rng.randrange(5))
    return bytes(changed)


def plan(seed: int, number: int, kinds: Sequence[str] = KINDS) -> Planned:
    """Draw one input; the same for the same seed and number, for ever."""
    rng = random.Random(f"{seed}/{number}")
    kind = kinds[number % len(kinds)]
    pieces = mutate(rng, CONVERSATIONS[kind](rng))
    if rng.random() < 0.2:
        pieces = _cut(rng, pieces)
    is_slow = rng.random() < 0.1
    pauses = [rng.random() * 0.1 if is_slow else 0.0 for _ in pieces]
    ending = rng.choice(["close", "close", "half close", "reset", "hang"])
    return Planned(kind, pieces, pauses, ending)


def _cut(rng: random.Random, pieces: list[bytes]) -> list[bytes]:
    """Cut the bytes anywhere: the first few one by one, the rest in strange lengths."""
    data, found = b"".join(pieces), []
    for _ in range(min(len(data), rng.randrange(1, 12))):
        found.append(data[:1])
        data = data[1:]
    while data and len(found) < 40:
        size = rng.randrange(1, 200)
        found.append(data[:size])
        data = data[size:]
    return [*found, data] if data else found or [b""]


async def say(targets: Targets, planned: Planned, tls: dict[str, ssl.SSLContext]) -> None:
    """Say one input, whatever is answered."""
    context = tls.get(planned.kind)
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(
            HOST,
            targets.port(planned.kind),
            ssl=context,
            server_hostname="localhost" if context is not None else None,
        )
        try:
            for piece, pause in zip(planned.pieces, planned.pauses, strict=True):
                writer.write(piece)
                await writer.drain()
                if pause:
                    await asyncio.sleep(pause)
            await _listen(reader)
            if planned.ending == "half close" and writer.can_write_eof():
                writer.write_eof()
                await _listen(reader)
            elif planned.ending == "hang":
                await asyncio.sleep(5 * ANSWER_SECONDS)
        finally:
            _end(writer, planned.ending)


async def _listen(reader: asyncio.StreamReader) -> None:
    """Read what is answered, for a moment."""
    with suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_SECONDS):
            while await reader.read(1 << 16):
                pass


def _end(writer: asyncio.StreamWriter, ending: str) -> None:
    if ending == "reset":
        line = writer.get_extra_info("socket")
        with suppress(OSError, AttributeError):  # it may be gone already
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()


def contexts(targets: Targets) -> dict[str, ssl.SSLContext]:
    found = {}
    for kind, files in (("mqtts", targets.client), ("peer", targets.node)):
        context = ssl.create_default_context(cafile=files[2])
        context.check_hostname = False
        context.load_cert_chain(files[0], files[1])
        found[kind] = context
    return found


async def say_all(targets: Targets, seed: int, first: int, count: int) -> Counter[str]:
    """Say so many inputs, many at once; return how many of each kind were said whole."""
    tls, said = contexts(targets), Counter[str]()
    numbers = iter(range(first, first + count))

    async def work() -> None:
        for number in numbers:
            planned = plan(seed, number)
            with suppress(OSError, ssl.SSLError, TimeoutError, asyncio.IncompleteReadError):
                await say(targets, planned, tls)
            said[planned.kind] += 1

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return said


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    found["client"], found["node"] = tuple(found["client"]), tuple(found["node"])
    said = asyncio.run(say_all(Targets(**found), *map(int, sys.argv[2:5])))
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
