"""What a production node is told: one TOML file, and nothing else.

The settings of a development broker without its plaintext listeners, and who this node is, where
it listens, where its certificates and keys are. Relative paths begin where the file is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from quantum.config import kinds
from quantum.config.errors import BadValue
from quantum.config.kinds import ListenAddress
from quantum.config.loading import DEFAULT, EffectiveSettings, keys_in, load_file
from quantum.config.settings import Settings, setting

_NAME: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_PLACE: Final = r"[a-z]+=[A-Za-z0-9.:\[\]-]+:\d{1,5}"
_REQUIRED: Final = ("cluster", "node", "host")
_PATHS: Final = ("data", "pki", "client_pki", "keys", "join")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings(Settings):
    """The configuration of one host's node."""

    cluster: str = setting("", kinds.text(_NAME, "a cluster's name"), "which cluster it is of")
    node: int = setting(0, kinds.count(1, 1 << 31), "its number, which no other node ever had")
    host: str = setting(
        "", kinds.host_names(), "its name or address, as other nodes and operators reach it"
    )
    zone: str = setting("", kinds.text(_NAME, "a zone's name"), "what fails together with it")
    data: Path = setting(Path("/var/lib/quantum"), kinds.path(), "where everything durable is")
    peer: ListenAddress = setting(
        ListenAddress("0.0.0.0", 7001),  # noqa: S104  # mutual TLS is all that is spoken here
        kinds.address(plaintext=False),
        "other nodes, over mutual TLS",
    )
    admin: ListenAddress | None = setting(
        ListenAddress("0.0.0.0", 9080),  # noqa: S104  # mutual TLS is all that is spoken here
        kinds.address(plaintext=False),
        "status and commands, over mutual TLS",
    )
    mqtt: ListenAddress | None = setting(None, kinds.shut(), "MQTT in plaintext: never here")
    ws: ListenAddress | None = setting(None, kinds.shut(), "WebSocket in plaintext: never here")
    mqtts: ListenAddress | None = setting(
        ListenAddress("0.0.0.0", 8883),  # noqa: S104  # TLS is all that is spoken here
        kinds.address(plaintext=False),
        "MQTT over TLS",
    )
    kafka: ListenAddress | None = setting(None, kinds.shut(), "Kafka in plaintext: never here")
    kafkas: ListenAddress | None = setting(None, kinds.address(plaintext=False), "Kafka over TLS")
    amqp: ListenAddress | None = setting(None, kinds.shut(), "AMQP in plaintext: never here")
    amqps: ListenAddress | None = setting(None, kinds.address(plaintext=False), "AMQP 1.0 over TLS")
    advertise: str = setting(
        "",
        kinds.text(rf"({_PLACE}(,{_PLACE})*)?", "LISTENER=HOST:PORT, with commas between them"),
        "where clients and nodes are told to go, where that is not `host` and the port here",
    )
    tenant: str = setting(
        "main", kinds.text(_NAME, "a tenant's name"), "whose clients come where no name says more"
    )
    pki: Path = setting(
        Path("pki"), kinds.path(), "node.pem, node.key and ca.pem: to nodes and operators"
    )
    client_pki: Path = setting(
        Path("client-pki"), kinds.path(), "server.pem, server.key and ca.pem: to clients"
    )
    keys: Path = setting(Path("keys"), kinds.path(), "the key ring, wrapped, and signing keys")
    join: Path = setting(Path("join"), kinds.path(), "what the first start needs to know")
    kek: str = setting(
        "file:kek.key",
        kinds.text(r"(file|command|kms):\S.*", "file:PATH, command:PROGRAM … or kms:WRAPPED-FILE"),
        "where the key comes from that opens the ring",
    )
    kms_url: str | None = setting(None, kinds.url(), "the key service, for kek = kms:…")
    kms_region: str = setting(
        "us-east-1", kinds.text(r"[a-z0-9-]+", "a region's name"), "the key service's region"
    )
    kms_key: str = setting("", kinds.text(r"\S*", "a key's id or ARN"), "the key service's key")
    hardening: str = setting(
        "report",
        kinds.choice("report", "require"),
        "whether a start needs every measure of hardening to be in force",
    )

    def advertised(self) -> Mapping[str, str]:
        """Return where others are told to go, HOST:PORT by listener; `peer` and `admin` too."""
        doors = {
            name: door
            for name in ("peer", "admin", "mqtts", "wss", "kafkas", "amqps")
            if (door := getattr(self, name)) is not None
        }
        said = dict(each.split("=", 1) for each in self.advertise.split(",") if each)
        return {
            name: said.get(name, str(ListenAddress(self.host, door.port)))
            for name, door in doors.items()
        }


def is_host_file(file: Path) -> bool:
    """Say whether a file is a production node's. Raises FileUnreadable."""
    return bool({"cluster", "node"} & keys_in(file))


def load_host(file: Path) -> EffectiveSettings[HostSettings]:
    """Read a production node's file. Raises ConfigurationError."""
    found = load_file(HostSettings, file)
    missing = [name for name in _REQUIRED if found.sources[name] == DEFAULT]
    if missing:
        raise BadValue(f"{file} must say {' and '.join(missing)}")
    settings = found.settings
    beside = file.absolute().parent
    paths = {name: beside / getattr(settings, name) for name in _PATHS}
    kind, _, rest = settings.kek.partition(":")
    kek = f"{kind}:{beside / rest}" if kind in ("file", "kms") else settings.kek
    zone = settings.zone or settings.host
    return EffectiveSettings(replace(settings, **paths, kek=kek, zone=zone), found.sources)
