"""What `quantum up` can be told: one typed value, each part with its kind and its default."""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from quantum.config import kinds
from quantum.config.kinds import ListenAddress, SettingKind, Value

_KIND: Final = "kind"
_ABOUT: Final = "about"


def setting(default: Any, kind: SettingKind, about: str) -> Any:
    """Declare a setting: its default, how it is read, and what it is for."""
    return field(default=default, metadata={_KIND: kind, _ABOUT: about})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The configuration of a development broker; every part may be said in every way."""

    data: Path = setting(Path("var"), kinds.path(), "where everything durable is kept")
    mqtt: ListenAddress | None = setting(
        ListenAddress("127.0.0.1", 1883), kinds.address(plaintext=True), "MQTT, plaintext"
    )
    mqtts: ListenAddress | None = setting(
        ListenAddress("127.0.0.1", 8883), kinds.address(plaintext=False), "MQTT over TLS"
    )
    wss: ListenAddress | None = setting(
        None, kinds.address(plaintext=False), "MQTT and AMQP over WebSocket over TLS"
    )
    tls_min: str = setting(
        "1.3", kinds.choice("1.2", "1.3"), "the oldest TLS that clients may speak"
    )
    client_auth: str = setting(
        "required",
        kinds.choice("none", "optional", "required"),
        "whether clients over TLS show certificates; without one, a token or a password must do",
    )
    password: str = setting(
        "optional",
        kinds.choice("off", "optional", "required"),
        "whether user names are looked at (`quantum users`); optional: those that are given, "
        "where the tenant has users; required: who shows no certificate and no token needs one",
    )
    server_name: str = setting(
        "", kinds.host_names(), "what clients call this machine; its certificate is for it too"
    )
    ws: ListenAddress | None = setting(
        ListenAddress("127.0.0.1", 8083),
        kinds.address(plaintext=True),
        "MQTT and AMQP over WebSocket",
    )
    kafka: ListenAddress | None = setting(
        ListenAddress("127.0.0.1", 9092), kinds.address(plaintext=True), "Kafka, plaintext"
    )
    kafkas: ListenAddress | None = setting(None, kinds.address(plaintext=False), "Kafka over TLS")
    amqp: ListenAddress | None = setting(
        ListenAddress("127.0.0.1", 5672), kinds.address(plaintext=True), "AMQP 1.0, plaintext"
    )
    amqps: ListenAddress | None = setting(None, kinds.address(plaintext=False), "AMQP 1.0 over TLS")
    admin: ListenAddress | None = setting(
        ListenAddress("127.0.0.1", 9080), kinds.address(plaintext=True), "status and commands"
    )
    tenant_prgs: int = setting(
        0,
        kinds.count(0, 512),
        "partitions of the tenant `dev`; 0: as many as it was made with, and one at first",
    )

    archive: str | None = setting(None, kinds.url(), "where closed segments and snapshots go")
    archive_flush_seconds: int = setting(
        60, kinds.count(1, 86_400, "seconds"), "an open segment is closed for the archive after"
    )
    archive_hold_bytes_max: int = setting(
        2 << 30, kinds.size(1 << 20, 1 << 40), "a log that waits for the archive grows to this"
    )

    backup_interval_seconds: int = setting(
        0,
        kinds.count(0, 2_678_400, "seconds"),
        "a backup of the archive is made, and verified, after; 0: only `quantum backup` makes any",
    )
    backup_keep_count: int = setting(
        30, kinds.count(1, 10_000), "so many of these backups are kept, whatever their age"
    )
    backup_keep_days: int = setting(
        0, kinds.count(0, 3_650, "days"), "these backups are kept for so long, however many"
    )

    traces: str = setting(
        "off", kinds.choice("off", "on"), "spans of single messages, in files of the data directory"
    )
    trace_percent: int = setting(
        1, kinds.count(0, 100), "of the publishes that bring no `traceparent`, how many get one"
    )

    connections_max: int = setting(100_000, kinds.count(1, 10_000_000), "clients at once")
    connections_per_second: int = setting(
        5_000, kinds.count(1, 1_000_000), "new clients a second, before TLS"
    )
    first_packet_seconds: int = setting(
        10, kinds.count(1, 300, "seconds"), "for handshakes and CONNECT together"
    )
    half_open_max: int = setting(
        10_000, kinds.count(1, 1_000_000), "connections without an answered CONNECT"
    )
    half_open_source_percent: int = setting(
        50,
        kinds.count(1, 100),
        "of those, how many one source may have; 100 behind a load balancer that hides sources",
    )
    tls_records: str = setting(
        "openssl",
        kinds.choice("openssl", "own"),
        "who makes clients' TLS records; own: a quarter of the memory, our own code",
    )
    packet_bytes_max: int = setting(
        16_842_752, kinds.size(1 << 10, 16_842_752), "the largest packet of a client"
    )
    connect_bytes_max: int = setting(
        128 << 10, kinds.size(1 << 10, 1_000_000), "the largest CONNECT"
    )
    keep_alive_seconds_max: int = setting(
        65_535, kinds.count(1, 65_535, "seconds"), "longer keep-alives are cut to this"
    )
    session_expiry_seconds_max: int = setting(
        4_294_967_295,
        kinds.count(0, 4_294_967_295, "seconds"),
        "longer expiries of MQTT 5 are cut to this, and CONNACK says so; the default cuts none",
    )
    receive_maximum: int = setting(
        1_024, kinds.count(1, 65_535), "publishes above QoS 0 that a client may have open"
    )
    topic_alias_maximum: int = setting(10, kinds.count(0, 65_535), "topic aliases of a client")
    topic_levels_max: int = setting(
        128, kinds.count(1, 1_024), "levels of a topic or filter; deeper ones are refused"
    )
    session_expiry_seconds_default: int = setting(
        604_800,
        kinds.count(1, 4_294_967_294, "seconds"),
        "a persistent session of MQTT 3.1 or 3.1.1, which cannot say how long, is kept for",
    )
    queue_bytes_max: int = setting(
        64 << 20, kinds.size(1 << 10, 1 << 40), "what waits for one session, in bytes"
    )
    queue_messages_max: int = setting(
        1_000, kinds.count(1, 10_000_000), "what waits for one session, in messages"
    )
    dedupe_horizon_seconds: int = setting(
        259_200,
        kinds.count(1, 604_800, "seconds"),
        "how long a QoS 2 publish is remembered that is not released",
    )


def kind_of(name: str, table: type[Settings] = Settings) -> SettingKind:
    """Return how a setting is read."""
    kind = _fields_of(table)[name].metadata[_KIND]
    assert isinstance(kind, SettingKind)
    return kind


def shown_default(name: str) -> str:
    """Return a setting's default as people write it."""
    default: Value = getattr(Settings(), name)
    return kind_of(name).show(default)


def about(name: str, table: type[Settings] = Settings) -> str:
    """Return what a setting is for, in a few words."""
    return str(_fields_of(table)[name].metadata[_ABOUT])


def names_of(table: type[Settings]) -> tuple[str, ...]:
    """Return the names of all settings of a table."""
    return tuple(_fields_of(table))


def _fields_of(table: type[Settings]) -> dict[str, Field[Any]]:
    return {each.name: each for each in fields(table)}


NAMES: Final = names_of(Settings)
