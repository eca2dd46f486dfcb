"""Count the way of one publish: Python calls, files and changes of room until its PUBACK.

    python -m bench.publish_way [--calls]

A whole `quantum up` runs in this process, with a client on a socket. After a few publishes one at
QoS 1 is followed by the interpreter's own call events: every function of `src/` that is entered
between the client's bytes and the PUBACK, comprehensions and compiled modules aside. The least of
many is taken: a tick of the node in between is no part of the way.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from types import FrameType

import uvloop

from quantum.admin.attaching import attach
from quantum.cli.config import load_or_fail
from quantum.node.up import serve_alone

SOURCE = str(Path(__file__).resolve().parent.parent / "src") + "/"
CONNECT = b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04way1"
PUBLISHES = 200


class Way:
    """The functions that were entered, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def see(self, frame: FrameType, event: str, _argument: object) -> None:
        """Take a call event; only functions of the sources count."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE) and code.co_name[0] != "<":
            self.calls.append((code.co_filename[len(SOURCE) :], code.co_qualname))

    def files(self) -> int:
        return len({file for file, _ in self.calls})

    def room_changes(self) -> int:
        rooms = [file.rpartition("/")[0] for file, _ in self.calls]
        return sum(1 for before, after in pairwise(rooms) if before != after)


def publish(packet_id: int) -> bytes:
    return b"\x32\x0c\x00\x05way/1" + packet_id.to_bytes(2, "big") + b"now"


async def follow(port: int) -> Way:
    """Publish again and again; return the shortest way that one took."""
    reader, writer = await _connected(port)
    writer.write(CONNECT)
    assert (await reader.readexactly(4))[3] == 0, "the broker takes the client"
    best = Way()
    for packet_id in range(1, PUBLISHES + 1):
        way = Way()
        sys.setprofile(way.see)
        writer.write(publish(packet_id))
        puback = await reader.readexactly(4)
        sys.setprofile(None)
        assert puback == b"\x40\x02" + packet_id.to_bytes(2, "big")
        if packet_id > PUBLISHES // 2 and (not best.calls or len(way.calls) < len(best.calls)):
            best = way
    writer.close()
    return best


async def _connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for _ in range(600):
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
    raise SystemExit("the broker did not start")


async def measure(directory: str) -> Way:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    names = ("mqtts", "ws", "wss", "kafka", "kafkas", "amqp", "amqps", "admin")
    flags: dict[str, object] = {
        **dict.fromkeys(names, "off"),
        "data": Path(directory),
        "mqtt": f"127.0.0.1:{port}",
        "tenant_prgs": 1,
    }
    settings = load_or_fail(flags, None).settings
    serving = asyncio.ensure_future(serve_alone(settings, lambda _line: None, attach))
    way = asyncio.ensure_future(follow(port))
    await asyncio.wait((serving, way), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
    found = await way
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", action="store_true", help="print every call")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    with tempfile.TemporaryDirectory() as directory:
        way = uvloop.run(measure(directory))
    if arguments.calls:
        for file, name in way.calls:
            print(f"{file}: {name}")
    print(f"{len(way.calls)} calls, {way.files()} files, {way.room_changes()} changes of room")


if __name__ == "__main__":
    main()
