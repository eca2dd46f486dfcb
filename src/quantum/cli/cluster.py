"""`quantum cluster`: a development cluster on this machine, and what a cluster is doing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from clustor.runtime.cluster_file import CLUSTER_FILE, PORTS_PER_NODE, read_cluster_file
from clustor.runtime.development import NODES_MAX, PORT_MAX, prepare_cluster
from clustor.runtime.errors import NodeError
from clustor.runtime.pki.identity import cluster_id, utc_now
from quantum.archive import ArchiveMisuse, open_objects
from quantum.cli import hosts, members, upgrade
from quantum.cli.admin_client import (
    AdminUnreachable,
    cluster_status,
    fail_unreachable,
    parse_address,
)
from quantum.cli.cluster_processes import stop_cluster, supervising
from quantum.cli.credentials import speak_beside, speaking
from quantum.cli.exits import Exit, fail
from quantum.cli.node_exits import exit_of_node
from quantum.cli.status_table import is_led_by, status_lines
from quantum.cli.supervisor import Supervisor
from quantum.edge.tls_development import prepare_server
from quantum.tenants.broker_file import (
    DEVELOPMENT_PRGS,
    PRGS_MAX,
    development_tenant,
    prepare_broker,
    set_archive,
)
from quantum.tenants.policy import TenantsFile, server_name_owners

app = typer.Typer(
    help="Run a development cluster on this machine, look at a cluster, change its members.",
    no_args_is_help=True,
)
app.command("init")(hosts.init)
app.command("add-host")(hosts.add_host_command)
app.command("members")(members.members)
app.command("add-node")(members.add_node)
app.command("remove-node")(members.remove_node)
app.command("rejoin-node")(members.rejoin_node)
app.command("transfer-leader")(members.transfer_leader)
app.command("upgrade")(upgrade.upgrade)

DataDir = Annotated[Path, typer.Option("--data", help="The cluster's directory.")]


@app.command()
def up(
    *,
    data: DataDir,
    nodes: Annotated[int, typer.Option(min=1, max=NODES_MAX, help="How many nodes.")] = 3,
    base_port: Annotated[
        int, typer.Option(min=1024, max=PORT_MAX, help="Node i has the ports BASE+10·i and up.")
    ] = 7000,
    groups: Annotated[int, typer.Option(min=1, max=999, help="How many Raft groups.")] = 1,
    tenant_prgs: Annotated[
        int,
        typer.Option(
            min=0, max=PRGS_MAX, help="Partitions of the development tenant; 0: no messages."
        ),
    ] = DEVELOPMENT_PRGS,
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="URL|off",
            help="Where closed segments go, and snapshots; it is remembered. [default: as before]",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="The name of a new cluster.")] = "dev",
    restart: Annotated[
        bool, typer.Option("--restart/--no-restart", help="Start a node that died again.")
    ] = True,
) -> None:
    """Start N real nodes on loopback and keep them running until Ctrl-C.

    Peers speak mutual TLS; the admin ports are plaintext and for loopback only. A node that dies
    is started again after a second. Exit code 3: the directory is not this cluster's. 4: keys.
    8: a port is taken. 9: a certificate. 10: the self-test failed. 11: a replica must not start.
    """
    if base_port + PORTS_PER_NODE * (nodes + 1) > PORT_MAX:
        fail(f"there are not enough ports above {base_port}", Exit.USAGE)
    archive_url = _archive_url(archive, tenant_prgs)
    try:
        cluster = prepare_cluster(
            data,
            cluster_id(name),
            nodes=nodes,
            base_port=base_port,
            groups=groups,
            now=utc_now(),
        )
        prepare_broker(data, development_tenant(tenant_prgs))
        if archive is not None:
            set_archive(data, archive_url)
        _prepare_certificate(data, tenant_prgs)
        with supervising(data):
            typer.echo(
                "development mode: peers use mutual TLS; admin, KV and MQTT are plaintext on"
                " loopback"
            )
            raise typer.Exit(Supervisor(data, cluster, restart=restart).run())
    except NodeError as error:
        fail(str(error), exit_of_node(error))


def _prepare_certificate(data: Path, prgs: int) -> None:
    """Make the brokers' certificate before the nodes do, all at once."""
    if prgs:
        names = frozenset(server_name_owners(TenantsFile(data).read()))
        prepare_server(data, utc_now(), names)


@app.command()
def down(data: DataDir) -> None:
    """Stop the nodes of the cluster below DATA, and the `cluster up` that keeps them.

    Also nodes that an earlier `cluster up` left behind when it was killed. Nothing that was
    acknowledged is lost. Exit code 0: none runs now. 1: one did not stop. 3: no cluster here.
    """
    try:
        asked = stop_cluster(data)
    except NodeError as error:
        fail(str(error), exit_of_node(error))
    except TimeoutError as error:
        fail(str(error), Exit.FAILED)
    for name, pid in asked.items():
        typer.echo(f"stopped {name} (process {pid})")
    if not asked:
        typer.echo("nothing ran")


def _archive_url(archive: str | None, tenant_prgs: int) -> str | None:
    """Check where to archive before anything is made; None for nowhere."""
    if archive is None or archive == "off":
        return None
    if not tenant_prgs:
        fail("there is nothing to archive without partitions: see --tenant-prgs", Exit.USAGE)
    try:
        open_objects(archive)
    except ArchiveMisuse as error:
        fail(str(error), Exit.USAGE)
    return archive


@app.command()
@speaking
def status(
    admin: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The admin address of any node.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The cluster's directory, instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show every replica of every group: who leads, how far each one is, and what is shut.

    Above the replicas stands what the leader says: the term, the durability mode, the members,
    the read gate and the clause that shuts it, and which share of its credits it gives to
    clients. A follower's lag is Transient or Structural once it costs them credits.

    Exit code 0: every group has a leader, and every node answers. 1: one has none, or a node
    does not. 12: no node answered.
    """
    found = _statuses(admin, data)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        for line in status_lines(found):
            typer.echo(line)
    groups = [group for node in found["nodes"] for group in _groups_of(node)]
    leaders = {group["partition_id"] for group in groups if is_led_by(group)}
    seen = {group["partition_id"] for group in groups}
    silent = any("error" in node for node in found["nodes"])
    raise typer.Exit(0 if leaders == seen and not silent else Exit.FAILED)


def _groups_of(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all that a node hosts, the control plane's group with them."""
    control = node.get("control")
    return [*node.get("groups", []), *([control["group"]] if control else [])]


def _statuses(admin: str | None, data: Path | None) -> dict[str, Any]:
    if (admin is None) == (data is None):
        fail("give either --admin or --data", Exit.USAGE)
    try:
        if admin is not None:
            addresses = [parse_address(admin)]
        else:
            assert data is not None
            speak_beside(data)
            addresses = [entry.admin for entry in read_cluster_file(data / CLUSTER_FILE).nodes]
        return cluster_status(addresses)
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except NodeError as error:
        fail(str(error), exit_of_node(error))
    except AdminUnreachable as error:
        fail_unreachable(error)
