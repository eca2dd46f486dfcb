"""`quantum node`: a host's node; tokens for new ones, who takes them, and the newcomer."""

from __future__ import annotations

import asyncio
import getpass
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from clustor.log.errors import KeyUnavailable
from clustor.runtime.cluster_file import CLUSTER_FILE, read_cluster_file
from clustor.runtime.errors import NodeError
from clustor.runtime.pki.enrolment import EnrolmentServer, enrol
from clustor.runtime.pki.enrolment_tokens import TokenStore, create_token, withdraw
from clustor.runtime.pki.identity import ClusterId, NodeId
from clustor.security import EnrolmentRefused, NodeRole, SecurityError
from clustor.wall_clock import wall_clock_ms
from quantum.cli.admin_client import parse_address
from quantum.cli.exits import Exit, fail
from quantum.cli.node_exits import exit_of_node
from quantum.cli.node_start import join, ready, start
from quantum.node.host_joining import taking_hosts

app = typer.Typer(
    help="Run the node of a host; let new nodes into a cluster.", no_args_is_help=True
)
token_app = typer.Typer(help="One-use tokens for new nodes.", no_args_is_help=True)
app.add_typer(token_app, name="token")
app.command("start")(start)
app.command("ready")(ready)
app.command("join")(join)

Data = Annotated[Path, typer.Option("--data", help="The cluster's directory.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@token_app.command()
def create(
    node: Annotated[int, typer.Argument(min=1, help="The number of the new node.")],
    data: Data,
    *,
    role: Annotated[NodeRole, typer.Option(help="What it is let in as.")] = NodeRole.VOTER,
    ttl: Annotated[int, typer.Option(min=1, max=86_400, help="Seconds it lasts.")] = 600,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, once: only its digest is kept.

    Exit code 3: no cluster here. 9: its authority cannot be used.
    """
    with _reported():
        token = create_token(
            data,
            _cluster(data),
            NodeId(node),
            role,
            ttl_ms=ttl * 1_000,
            issued_by=f"local:{getpass.getuser()}",
        )
    made = {"token": token, "node": node, "role": role.value, "ttl_seconds": ttl}
    typer.echo(json.dumps(made) if as_json else token)


@token_app.command("list")
def list_tokens(data: Data, *, as_json: AsJson = False) -> None:
    """List tokens: for whom, until when, and whether they were used."""
    with _reported():
        _cluster(data)  # a directory without one has no tokens either, and is a mistake
        book = TokenStore(data).read()
    for entry in book.tokens:
        until = datetime.fromtimestamp(entry.expires_at_ms / 1000, UTC)
        shown = {
            "node": entry.node_id,
            "role": entry.role.value,
            "state": entry.state(wall_clock_ms()),
            "until": until.isoformat(timespec="seconds"),
            "issued_by": entry.issued_by,
            "digest": entry.digest[:16],
        }
        typer.echo(json.dumps(shown) if as_json else "  ".join(map(str, shown.values())))


@token_app.command("withdraw")
def withdraw_command(
    node: Annotated[int, typer.Argument(min=1, help="Whose open tokens end.")], data: Data
) -> None:
    """End a node's open tokens."""
    with _reported():
        count = withdraw(data, NodeId(node), f"local:{getpass.getuser()}")
    typer.echo(f"withdrew {count} of node {node}")


@app.command()
def serve(
    data: Data,
    *,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where.")
    ] = "127.0.0.1:7009",
) -> None:
    """Take enrolments until Ctrl-C. Whoever runs this has the authority's key."""
    with _reported():
        asyncio.run(_serve(data, listen))


@app.command("enrol")
def enrol_command(
    node: Annotated[int, typer.Argument(min=1, help="The number of this node.")],
    *,
    token: Annotated[str, typer.Option("--token", envvar="QUANTUM_ENROL_TOKEN", help="The token.")],
    server: Annotated[str, typer.Option("--server", metavar="HOST:PORT", help="Who takes it.")],
    data: Annotated[Path, typer.Option("--data", help="The new node's data directory.")],
    role: Annotated[NodeRole, typer.Option(help="As the token says.")] = NodeRole.VOTER,
) -> None:
    """Show a token, and get this node's certificate and keys.

    The private key is made here and never leaves. When an answer is lost, give the same command
    again. Exit code 9: refused. 12: the server does not answer.
    """
    with _reported():
        cluster = asyncio.run(enrol(parse_address(server), token, NodeId(node), role, data))
    typer.echo(f"node {node} of {cluster}: certificate and keys are in {data}")


async def _serve(data: Path, listen: str) -> None:
    cluster = read_cluster_file(data / CLUSTER_FILE)
    take = taking_hosts(data) if cluster.production else None
    server = EnrolmentServer(data, cluster.id, take)
    address = await server.listen(parse_address(listen))
    typer.echo(f"taking enrolments on {address}")
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await server.close()


def _cluster(data: Path) -> ClusterId:
    return read_cluster_file(data / CLUSTER_FILE).id


@contextmanager
def _reported() -> Iterator[None]:
    """Turn what went wrong into one sentence and an exit code."""
    try:
        yield
    except EnrolmentRefused as error:
        fail(f"{error.code}: {error}", Exit.CERTIFICATE)
    except SecurityError as error:
        fail(str(error), Exit.FAILED)
    except KeyUnavailable as error:
        fail(str(error), Exit.WRONG_KEY)
    except NodeError as error:
        fail(str(error), exit_of_node(error))
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except (OSError, TimeoutError) as error:
        fail(f"the server does not answer: {error}", Exit.UNREACHABLE)
