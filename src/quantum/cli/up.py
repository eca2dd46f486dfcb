"""`quantum up`: start a development broker."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from clustor.log.errors import LogError
from clustor.raft.errors import DataLost
from clustor.replica import ReplicaError
from clustor.runtime.disk import DiskError
from clustor.runtime.disk.memory import keep_freed_memory
from clustor.runtime.errors import NodeError
from clustor.runtime.main import check_self, raise_file_limit
from clustor.runtime.telemetry.journal import set_up_logging
from quantum.admin.attaching import attach
from quantum.cli.config import load_or_fail
from quantum.cli.exits import Exit, exit_of, fail
from quantum.cli.naming import own_command
from quantum.cli.node_exits import exit_of_node
from quantum.edge.errors import CertificatesUnusable, EdgeError, ListenFailed
from quantum.node.up import serve_alone


def up(
    *,
    data: Annotated[Path | None, typer.Option(help="Where everything durable is kept.")] = None,
    mqtt: Annotated[
        str | None, typer.Option(metavar="HOST:PORT|off", help="MQTT, plaintext, loopback only.")
    ] = None,
    mqtts: Annotated[
        str | None, typer.Option(metavar="HOST:PORT|off", help="MQTT over TLS.")
    ] = None,
    server_name: Annotated[
        list[str] | None,
        typer.Option(
            "--server-name",
            metavar="NAME",
            help="What clients call this machine (MQTTS); may be repeated.",
        ),
    ] = None,
    ws: Annotated[
        str | None, typer.Option(metavar="HOST:PORT|off", help="MQTT over WebSocket.")
    ] = None,
    wss: Annotated[
        str | None, typer.Option(metavar="HOST:PORT|off", help="MQTT over WebSocket over TLS.")
    ] = None,
    tls_min: Annotated[
        str | None, typer.Option(metavar="1.2|1.3", help="The oldest TLS that clients may speak.")
    ] = None,
    client_auth: Annotated[
        str | None,
        typer.Option(metavar="none|optional|required", help="Clients' certificates over TLS."),
    ] = None,
    password: Annotated[
        str | None,
        typer.Option(metavar="off|optional|required", help="User names, as `quantum users` has."),
    ] = None,
    admin: Annotated[
        str | None, typer.Option(metavar="HOST:PORT|off", help="Status, for `quantum status`.")
    ] = None,
    tenant_prgs: Annotated[int | None, typer.Option(help="Partitions of the tenant `dev`.")] = None,
    archive: Annotated[
        str | None, typer.Option(metavar="URL|off", help="Where closed segments go, and snapshots.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say what the node does.")] = False,
) -> None:
    """Start a development broker in this process: one node, tenant `dev`, durable under DATA.

    Every acknowledgement is on disk first. Ctrl-C stops it; kill it, and it comes back with
    sessions, queues and retained messages. `quantum config show` prints all settings; each has
    an environment variable (QUANTUM_MQTT=…) and a key of the TOML file.
    """
    flags: dict[str, object] = {
        "data": data,
        "mqtt": mqtt,
        "mqtts": mqtts,
        "server_name": ",".join(server_name) if server_name else None,
        "ws": ws,
        "wss": wss,
        "tls_min": tls_min,
        "client_auth": client_auth,
        "password": password,
        "admin": admin,
        "tenant_prgs": tenant_prgs,
        "archive": archive,
    }
    settings = load_or_fail(flags, config).settings
    level = logging.INFO if verbose else logging.WARNING
    set_up_logging(1, level=level)
    try:
        check_self()
        keep_freed_memory()
        raise_file_limit()
        uvloop.run(serve_alone(settings, _say, attach, command=own_command()))
    except ListenFailed as error:
        fail(f"{error}; choose another with --mqtt, --mqtts or --ws", Exit.PORT_TAKEN)
    except CertificatesUnusable as error:
        fail(str(error), Exit.CERTIFICATE)
    except EdgeError as error:
        fail(str(error), Exit.USAGE)
    except NodeError as error:
        fail(str(error), exit_of_node(error))
    except (ReplicaError, DataLost, DiskError) as error:
        fail(str(error), Exit.REPLICA)
    except LogError as error:
        fail(str(error), exit_of(error))


def _say(line: str) -> None:
    typer.echo(line)
    sys.stdout.flush()
