"""`quantum pub`: publish messages, and say when the broker has them."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from quantum.cli import mqtt_client as cli
from quantum.cli.exits import Exit, fail
from quantum.client import ClientOptions, Endpoint, MqttClient, NotAcknowledged
from quantum.protocols.mqtt.codec import Properties, TopicName, Will, is_topic_name

_UNACKNOWLEDGED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Sending:
    """What is the same for all messages of one call."""

    topic: str
    qos: int
    retain: bool
    properties: Properties
    as_json: bool


def pub(
    topic: Annotated[str, typer.Argument(help="A topic, without wildcards.")],
    message: Annotated[str | None, typer.Argument(help="The message; else standard input.")] = None,
    *,
    proto: cli.Proto = cli.Protocol.V5,
    qos: cli.Qos = 1,
    retain: Annotated[bool, typer.Option("--retain", "-r", help="Keep it for later.")] = False,
    properties: cli.PropertyList = None,
    stdin_lines: Annotated[
        bool, typer.Option("--stdin-lines", "-l", help="One message per line of standard input.")
    ] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Send it so many times.")] = 1,
    host: cli.Host = "127.0.0.1",
    port: cli.Port = None,
    tls: cli.Tls = False,
    ca: cli.Ca = None,
    cert: cli.Cert = None,
    key: cli.Key = None,
    server_name: cli.ServerName = None,
    client_id: cli.ClientName = None,
    user: cli.User = None,
    password_file: cli.PasswordFile = None,
    will_topic: Annotated[str | None, typer.Option(help="Where our will goes.")] = None,
    will_message: Annotated[str, typer.Option(help="Our will.")] = "",
    as_json: cli.AsJson = False,
) -> None:
    """Publish MESSAGE to TOPIC.

    When this ends with exit code 0 at QoS 1 or 2, the broker has acknowledged every message.
    1: the broker refused one, or the connection was lost. 2: a wrong flag. 9: a certificate.
    12: nothing answers there.
    """
    for name in (topic, will_topic):
        if name is not None and not is_topic_name(name.encode(errors="surrogateescape")):
            fail(f"{name!r} is no topic: it may not be empty, nor contain + or #", Exit.USAGE)
    if stdin_lines and message is not None:
        fail("give a message, or --stdin-lines", Exit.USAGE)
    version = cli.VERSIONS[proto]
    sending = _Sending(topic, qos, retain, cli.parse_properties(properties, version), as_json)
    endpoint = cli.endpoint_of(
        host, port, tls=tls, ca=ca, cert=cert, key=key, server_name=server_name
    )
    options = ClientOptions(
        client_id=cli.own_client_id(client_id),
        version=version,
        user_name=user,
        password=cli.password_of(password_file),
        will=None if will_topic is None else _will(will_topic, will_message, qos),
    )
    payloads = _lines() if stdin_lines else _same(message, repeat)
    cli.run(_publish(endpoint, options, sending, payloads))


def _will(topic: str, message: str, qos: int) -> Will:
    return Will(TopicName(topic.encode()), message.encode(), qos)


async def _same(message: str | None, repeat: int) -> AsyncIterator[bytes]:
    payload = sys.stdin.buffer.read() if message is None else message.encode()
    for _ in range(repeat):
        yield payload


async def _lines() -> AsyncIterator[bytes]:
    """Give the lines of standard input as they come, whatever it is: a pipe, a file, a person."""
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        yield line.rstrip(b"\r\n")


async def _publish(
    endpoint: Endpoint, options: ClientOptions, sending: _Sending, payloads: AsyncIterator[bytes]
) -> None:
    async with MqttClient(endpoint, options) as client:
        waiting: set[asyncio.Task[None]] = set()
        async for payload in payloads:
            await client.writable()
            task = asyncio.create_task(_publish_one(client, sending, payload))
            waiting.add(task)
            if len(waiting) >= _UNACKNOWLEDGED_MAX or sending.qos == 0:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for finished in done:
                    finished.result()
        if waiting:
            await asyncio.wait(waiting)
        for finished in waiting:
            finished.result()


async def _publish_one(client: MqttClient, sending: _Sending, payload: bytes) -> None:
    started = time.perf_counter()
    shown: dict[str, Any] = {"topic": sending.topic, "qos": sending.qos, "bytes": len(payload)}
    try:
        code = await client.publish(
            sending.topic,
            payload,
            qos=sending.qos,
            retain=sending.retain,
            properties=sending.properties,
        )
    except NotAcknowledged as error:
        if sending.as_json:
            typer.echo(json.dumps(shown | {"reason_code": error.reason_code, "error": str(error)}))
        raise
    if sending.as_json:
        took = round((time.perf_counter() - started) * 1000, 3)
        typer.echo(json.dumps(shown | {"reason_code": code, "ms": took}))
