"""What `quantum pub`, `sub` and `bench mqtt` share: where the broker is, and who we are."""

from __future__ import annotations

import asyncio
import base64
import secrets
import ssl
from collections.abc import Coroutine
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from quantum.cli.exits import Exit, fail
from quantum.client import ClientError, Endpoint, Unreachable
from quantum.protocols.mqtt.codec import MqttMisuse, Properties, ProtocolVersion, TopicName

PLAIN_PORT: Final = 1883
TLS_PORT: Final = 8883
_Answer = TypeVar("_Answer")


class Protocol(StrEnum):
    """The versions of MQTT, as people name them."""

    V31 = "3.1"
    V311 = "3.1.1"
    V5 = "5"


VERSIONS: Final = {
    Protocol.V31: ProtocolVersion.V31,
    Protocol.V311: ProtocolVersion.V311,
    Protocol.V5: ProtocolVersion.V5,
}

Host = Annotated[str, typer.Option("--host", "-H", help="Where the broker is.")]
Port = Annotated[
    int | None, typer.Option("--port", "-p", min=1, max=65_535, help="1883; with TLS 8883.")
]
Proto = Annotated[Protocol, typer.Option("--proto", help="Which MQTT to speak.")]
Qos = Annotated[
    int, typer.Option("--qos", "-q", min=0, max=2, help="At most, at least, exactly once.")
]
Tls = Annotated[bool, typer.Option("--tls", help="Use TLS; implied by --ca and --cert.")]
Ca = Annotated[Path | None, typer.Option(help="The authority that the broker must have.")]
Cert = Annotated[Path | None, typer.Option(help="Our certificate: see `quantum cert issue`.")]
Key = Annotated[Path | None, typer.Option(help="The key of our certificate.")]
ServerName = Annotated[str | None, typer.Option(help="The name to ask for, if not the host.")]
ClientName = Annotated[str | None, typer.Option("--client-id", help="Who we are; else random.")]
KeepAlive = Annotated[int, typer.Option(min=0, max=65_535, help="Seconds between pings.")]
User = Annotated[str | None, typer.Option(help="A user name.")]
PasswordFile = Annotated[Path | None, typer.Option(help="A file with the password.")]
PropertyList = Annotated[
    list[str] | None,
    typer.Option(
        "--properties", "-P", metavar="NAME=VALUE", help="MQTT 5; user.NAME=VALUE is yours."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per message.")]


def endpoint_of(
    host: str,
    port: int | None,
    *,
    tls: bool,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    server_name: str | None,
) -> Endpoint:
    """Say where the broker is, with TLS if anything of it was asked for."""
    if cert is None and key is not None:
        fail("--key needs --cert", Exit.USAGE)
    if not (tls or ca or cert):
        return Endpoint(host, port or PLAIN_PORT)
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        what = getattr(error, "strerror", None) or error
        fail(f"cannot use the certificates ({ca or 'system'}, {cert}): {what}", Exit.CERTIFICATE)
    return Endpoint(host, port or TLS_PORT, context, server_name)


def own_client_id(given: str | None) -> str:
    """Return who we are; random names fit the 23 characters of MQTT 3.1."""
    return given if given is not None else f"quantum-{secrets.token_hex(6)}"


def password_of(file: Path | None) -> bytes | None:
    if file is None:
        return None
    try:
        return file.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror}", Exit.USAGE)


def run(call: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Run a client, and turn what goes wrong into one sentence and an exit code."""
    try:
        return asyncio.run(call)
    except Unreachable as error:
        fail(str(error), Exit.UNREACHABLE)
    except (ClientError, MqttMisuse) as error:
        fail(str(error), Exit.FAILED)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


# Properties.

_NUMBERS: Final = frozenset(
    {"payload_format_indicator", "message_expiry_interval", "will_delay_interval"}
)
_WRITABLE: Final = (
    "content_type",
    "correlation_data",
    "message_expiry_interval",
    "payload_format_indicator",
    "response_topic",
    "user.NAME",
)


def parse_properties(given: list[str] | None, version: ProtocolVersion) -> Properties:
    """Read NAME=VALUE pairs of a message, or end with one sentence."""
    if given and version is not ProtocolVersion.V5:
        fail("properties exist in MQTT 5 only: leave out --properties or --proto", Exit.USAGE)
    found: dict[str, Any] = {}
    mine: list[tuple[str, str]] = []
    for pair in given or ():
        name, equals, value = pair.partition("=")
        name = name.replace("-", "_") if not name.startswith("user.") else name
        if not equals or (name not in _WRITABLE and not name.startswith("user.")):
            fail(
                f"--properties {pair}: must be NAME=VALUE with one of {', '.join(_WRITABLE)}",
                Exit.USAGE,
            )
        if name.startswith("user."):
            mine.append((name.removeprefix("user."), value))
        else:
            found[name] = _property(name, value)
    return Properties(**found, user_properties=tuple(mine))


def _property(name: str, value: str) -> object:
    if name in _NUMBERS:
        if not value.isdecimal():
            fail(f"--properties {name}={value}: must be a whole number", Exit.USAGE)
        return int(value)
    if name == "correlation_data":
        return value.encode()
    return TopicName(value.encode()) if name == "response_topic" else value


def shown_properties(properties: Properties) -> dict[str, object]:
    """Return the properties that are there, as JSON can hold them."""
    shown: dict[str, object] = {}
    for each in fields(properties):
        value = getattr(properties, each.name)
        if value is None or value == ():
            continue
        if isinstance(value, bytes):
            shown |= shown_bytes(each.name, value)
        else:
            shown[each.name] = value
    return shown


def shown_bytes(name: str, data: bytes) -> dict[str, str]:
    """Return bytes as text where they are text, in base64 where they are not."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
