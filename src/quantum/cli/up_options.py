"""What `quantum up` may be told; each is a setting of the broker, too."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True)
class UpOptions:
    """Where it listens, whom it lets in, and where it keeps things."""

    data: Annotated[Path | None, typer.Option(help="Where everything durable is kept.")] = None
    mqtt: Annotated[
        str | None, typer.Option(metavar="HOST:PORT|off", help="MQTT, plaintext, loopback only.")
    ] = None
    mqtts: Annotated[str | None, typer.Option(metavar="HOST:PORT|off", help="MQTT over TLS.")] = (
        None
    )
    server_name: Annotated[
        list[str] | None,
        typer.Option(
            "--server-name",
            metavar="NAME",
            help="What clients call this machine (MQTTS); may be repeated.",
        ),
    ] = None
    ws: Annotated[
        str | None, typer.Option(metavar="HOST:PORT|off", help="MQTT and AMQP over WebSocket.")
    ] = None
    wss: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT|off", help="MQTT and AMQP over WebSocket over TLS."),
    ] = None
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT|off", help="Kafka, plaintext, loopback only.")
    ] = None
    kafkas: Annotated[str | None, typer.Option(metavar="HOST:PORT|off", help="Kafka over TLS.")] = (
        None
    )
    amqp: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT|off", help="AMQP 1.0, plaintext, loopback only."),
    ] = None
    amqps: Annotated[
        str | None, typer.Option(metavar="HOST:PORT|off", help="AMQP 1.0 over TLS.")
    ] = None
    tls_min: Annotated[
        str | None, typer.Option(metavar="1.2|1.3", help="The oldest TLS that clients may speak.")
    ] = None
    client_auth: Annotated[
        str | None,
        typer.Option(metavar="none|optional|required", help="Clients' certificates over TLS."),
    ] = None
    password: Annotated[
        str | None,
        typer.Option(metavar="off|optional|required", help="User names, as `quantum users` has."),
    ] = None
    admin: Annotated[
        str | None, typer.Option(metavar="HOST:PORT|off", help="Status, for `quantum status`.")
    ] = None
    tenant_prgs: Annotated[
        int | None, typer.Option(help="Partitions of the tenant `dev`; one if nobody says.")
    ] = None
    archive: Annotated[
        str | None, typer.Option(metavar="URL|off", help="Where closed segments go, and snapshots.")
    ] = None

    backup_interval_seconds: Annotated[
        int | None, typer.Option(metavar="SECONDS", help="How often to back up; 0: never.")
    ] = None
    backup_keep_count: Annotated[
        int | None, typer.Option(metavar="N", help="How many of these backups are kept.")
    ] = None
    backup_keep_days: Annotated[
        int | None, typer.Option(metavar="DAYS", help="How long they are kept, however many.")
    ] = None

    def flags(self) -> dict[str, object]:
        """Return them by the names of the settings; None: not given."""
        given: dict[str, object] = {each.name: getattr(self, each.name) for each in fields(self)}
        return given | {"server_name": ",".join(self.server_name) if self.server_name else None}
