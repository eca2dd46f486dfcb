"""`quantum node start`, `ready` and `join`: the node of a host, by its `quantum.toml`."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
from pathlib import Path
from typing import Annotated

import typer

from clustor.log.errors import KeyUnavailable, LogError
from clustor.raft.errors import DataLost
from clustor.replica import ReplicaError
from clustor.runtime.admin.caller import Credentials
from clustor.runtime.disk import DiskError
from clustor.runtime.disk.memory import keep_freed_memory
from clustor.runtime.errors import NodeError
from clustor.runtime.main import check_self, raise_file_limit
from clustor.runtime.peers.address import Address
from clustor.runtime.pki.identity import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, NodeId
from clustor.runtime.telemetry.journal import FORMATS, set_up_logging
from clustor.security import EnrolmentRefused
from quantum.admin.attaching import attach
from quantum.cli.admin_client import AdminUnreachable, exchange, parse_address
from quantum.cli.exits import Exit, exit_of, fail
from quantum.cli.node_exits import exit_of_node
from quantum.config import ConfigurationError, HostSettings, load_host
from quantum.edge.errors import CertificatesUnusable, EdgeError, ListenFailed
from quantum.node.host import run_host
from quantum.node.host_folders import HostPlace
from quantum.node.host_joining import join_host

CONFIG_DEFAULT = Path("/etc/quantum/quantum.toml")

Config = Annotated[Path, typer.Option("--config", envvar="QUANTUM_CONFIG", help="The node's file.")]


def start(
    *,
    config: Config = CONFIG_DEFAULT,
    log_format: Annotated[
        str | None, typer.Option(help=f"How the journal is written: {', '.join(FORMATS)}.")
    ] = None,
) -> None:
    """Run the node of this host until SIGTERM, in this process.

    It is bound to real addresses, and speaks TLS on all of them. Under systemd it says when it is
    ready, and goes on saying that it lives. `quantum config check FILE` looks at everything first.

    Exit code 2: a setting. 3: the data is another's, or keys lie beside it. 4: keys. 8: a port is
    taken. 9: a certificate. 10: the self-test failed. 11: a replica must not start.
    """
    settings = load_settings(config)
    text = f"%(asctime)s node {settings.node} %(message)s"
    set_up_logging(settings.node, log_format, text=text)
    faulthandler.register(signal.SIGUSR1)  # `kill -USR1` shows where a node is
    try:
        check_self()
        keep_freed_memory()
        raise_file_limit()
        run_host(settings, attach)
    except ListenFailed as error:
        fail(str(error), Exit.PORT_TAKEN)
    except CertificatesUnusable as error:
        fail(str(error), Exit.CERTIFICATE)
    except EdgeError as error:
        fail(str(error), Exit.USAGE)
    except KeyUnavailable as error:
        fail(str(error), Exit.WRONG_KEY)
    except NodeError as error:
        fail(str(error), exit_of_node(error))
    except (ReplicaError, DataLost, DiskError) as error:
        fail(str(error), Exit.REPLICA)
    except LogError as error:
        fail(str(error), exit_of(error))


def ready(
    *,
    config: Config = CONFIG_DEFAULT,
    live: Annotated[
        bool, typer.Option("--live", help="Ask `/livez` instead: whether it answers at all.")
    ] = False,
) -> None:
    """Say whether the node of this host is ready: what its `/readyz` says, by its certificate.

    For health checks of containers: the admin port answers nobody without a certificate.

    Exit code 0: it is. 1: it is not yet. 12: it does not answer.
    """
    settings = load_settings(config)
    assert settings.admin is not None
    pki = settings.pki
    shown = Credentials(pki / CERTIFICATE_FILE, pki / KEY_FILE, pki / AUTHORITY_FILE)
    wild = settings.admin.host in ("0.0.0.0", "::")  # noqa: S104  # compared with, never bound
    place = Address("127.0.0.1" if wild else settings.admin.host, settings.admin.port)
    try:
        code, said, _ = exchange(
            place,
            "GET",
            "/livez" if live else "/readyz",
            None,
            headers={},
            seconds=5.0,
            credentials=shown,
        )
    except AdminUnreachable as error:
        fail(str(error), Exit.UNREACHABLE)
    if code != 200:
        why = said.get("why") or said.get("message") or said if isinstance(said, dict) else said
        fail(f"node {settings.node} is not ready: {why}", Exit.FAILED)
    typer.echo(f"node {settings.node} {'answers' if live else 'is ready'}")


def join(
    host: Annotated[str, typer.Argument(metavar="NAME=ADDRESS", help="This host.")],
    *,
    node: Annotated[int, typer.Option(min=1, help="Its number, as the token says.")],
    token: Annotated[str, typer.Option(envvar="QUANTUM_ENROL_TOKEN", help="The token.")],
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Who takes it.")],
    out: Annotated[Path, typer.Option(help="Where this host's folder goes.")] = Path(
        "/etc/quantum"
    ),
    data: Annotated[Path, typer.Option(help="Where it keeps its data.")] = Path("/var/lib/quantum"),
    server_name: Annotated[
        list[str] | None, typer.Option(help="What clients call this host, too.")
    ] = None,
) -> None:
    """Show a token on a new host, and get its folder: certificates, key ring, `quantum.toml`.

    The operator makes the token (`quantum node token create`) and takes it (`quantum node serve`),
    both on the operator's folder. Private keys are made here and never leave. When an answer is
    lost, give the same command again. Then start the node, and let the operator make it a member:
    `quantum cluster add-node`.

    Example: quantum node join d=10.0.0.4 --node 4 --token qe1.… --server 10.0.0.9:7009

    Exit code 3: the folder is there. 9: refused. 12: the server does not answer.
    """
    from quantum.cli.hosts import read_hosts

    (name, address), *_ = read_hosts(host)
    place = HostPlace(name, address, names=tuple(server_name or ()))
    try:
        made = asyncio.run(
            join_host(parse_address(server), token, NodeId(node), place, out=out, data=data)
        )
    except EnrolmentRefused as error:
        fail(f"{error.code}: {error}", Exit.CERTIFICATE)
    except NodeError as error:
        fail(str(error), exit_of_node(error))
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except (OSError, TimeoutError) as error:
        fail(f"the server does not answer: {error}", Exit.UNREACHABLE)
    typer.echo(f"node {node}: {made}")


def load_settings(config: Path) -> HostSettings:
    """Read a host's file, or end with one sentence."""
    try:
        return load_host(config).settings
    except ConfigurationError as error:
        fail(str(error), Exit.USAGE)
