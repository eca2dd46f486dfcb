"""`quantum sub`: print messages as they come."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from quantum.cli import mqtt_client as cli
from quantum.cli.exits import Exit, fail
from quantum.client import ClientOptions, Endpoint, MqttClient
from quantum.protocols.mqtt.codec import (
    MqttError,
    Publish,
    RetainHandling,
    Subscription,
    TopicFilter,
    check_topic_filter,
)


@dataclass(frozen=True, slots=True)
class _Showing:
    """How messages are printed, and how many."""

    as_json: bool
    topics: bool
    count: int


def sub(
    filters: Annotated[list[str], typer.Argument(metavar="FILTER...", help="Topics; + and # too.")],
    *,
    proto: cli.Proto = cli.Protocol.V5,
    qos: cli.Qos = 1,
    count: Annotated[int, typer.Option(min=0, help="End after so many; 0: never.")] = 0,
    timeout: Annotated[float, typer.Option(min=0, help="Give up after seconds; 0: never.")] = 0,
    topics: Annotated[bool, typer.Option("--topics", "-v", help="Print topics too.")] = False,
    no_retained: Annotated[bool, typer.Option(help="Not what was retained before.")] = False,
    no_local: Annotated[bool, typer.Option(help="Not what we publish ourselves.")] = False,
    session_expiry: Annotated[
        int | None, typer.Option(min=0, help="Keep the session so many seconds (MQTT 5).")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Take up the session of --client-id.")] = False,
    host: cli.Host = "127.0.0.1",
    port: cli.Port = None,
    tls: cli.Tls = False,
    ca: cli.Ca = None,
    cert: cli.Cert = None,
    key: cli.Key = None,
    server_name: cli.ServerName = None,
    client_id: cli.ClientName = None,
    keep_alive: cli.KeepAlive = 60,
    user: cli.User = None,
    password_file: cli.PasswordFile = None,
    as_json: cli.AsJson = False,
) -> None:
    """Print messages of FILTER, until Ctrl-C or --count.

    A lost connection is opened again. Exit code 0: ended as asked. 1: the broker refused, or
    --timeout came first. 2: a wrong flag. 9: a certificate. 12: nothing answers there.
    """
    if resume and client_id is None:
        fail("--resume needs the --client-id of the session", Exit.USAGE)
    handling = RetainHandling.DO_NOT_SEND if no_retained else RetainHandling.SEND
    subscriptions = tuple(
        Subscription(_checked(text), qos, no_local, retain_handling=handling) for text in filters
    )
    endpoint = cli.endpoint_of(
        host, port, tls=tls, ca=ca, cert=cert, key=key, server_name=server_name
    )
    options = ClientOptions(
        client_id=cli.own_client_id(client_id),
        version=cli.VERSIONS[proto],
        clean_start=not resume,
        keep_alive=keep_alive,
        session_expiry=session_expiry,
        user_name=user,
        password=cli.password_of(password_file),
    )
    showing = _Showing(as_json, topics, count)
    shown = cli.run(_follow(endpoint, options, subscriptions, showing, timeout))
    if count and shown < count:
        fail(f"only {shown} of {count} messages came in {timeout:g} s", Exit.FAILED)


def _checked(text: str) -> TopicFilter:
    try:
        topic_filter = TopicFilter(text.encode())
        check_topic_filter(topic_filter)
    except (MqttError, UnicodeEncodeError):
        fail(f"{text!r} is no topic filter: + and # stand for whole levels, # last", Exit.USAGE)
    return topic_filter


async def _follow(
    endpoint: Endpoint,
    options: ClientOptions,
    subscriptions: tuple[Subscription, ...],
    showing: _Showing,
    timeout: float,
) -> int:
    shown = 0
    jitter = secrets.SystemRandom().random
    async with MqttClient(endpoint, options, jitter=jitter) as client:
        try:
            async with asyncio.timeout(timeout or None):
                await client.subscribe(*subscriptions)
                async for message in client.messages():
                    _print(message, showing)
                    shown += 1
                    if shown == showing.count:
                        break
        except TimeoutError:
            pass
    return shown


def _print(message: Publish, showing: _Showing) -> None:
    if showing.as_json:
        typer.echo(json.dumps(_as_object(message)))
        return
    head = message.topic + b" " if showing.topics else b""
    sys.stdout.buffer.write(head + message.payload + b"\n")
    sys.stdout.buffer.flush()


def _as_object(message: Publish) -> dict[str, Any]:
    shown: dict[str, Any] = {"topic": message.topic.decode()}
    shown |= cli.shown_bytes("payload", message.payload)
    shown |= {"qos": message.qos, "retain": message.retain}
    if properties := cli.shown_properties(message.properties):
        shown["properties"] = properties
    return shown
