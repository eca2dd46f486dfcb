"""`quantum cert`: certificates of a development broker: issued, renewed, revoked."""

from __future__ import annotations

import json
import shlex
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from clustor.runtime.cluster_file import CLUSTER_FILE
from clustor.runtime.development import node_directory
from clustor.runtime.errors import NodeError
from clustor.runtime.pki.identity import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    PKI_DIRECTORY,
    NodeId,
    utc_now,
)
from clustor.runtime.pki.renewal_development import renew_nodes, revoke_node
from quantum.cli import cert_rollover
from quantum.cli.exits import Exit, fail
from quantum.cli.naming import own_command
from quantum.cli.node_exits import exit_of_node
from quantum.cli.recording import record_done
from quantum.edge.errors import CertificatesUnusable
from quantum.edge.tls_development import (
    SERVER_FILE,
    ClientFiles,
    client_certificate,
    issue_client,
    pki_directory,
    renew_server,
    revoke_client,
)
from quantum.node.listening import mqtts_port

app = typer.Typer(
    help="Issue, renew and revoke certificates of a development broker.", no_args_is_help=True
)
app.add_typer(cert_rollover.app, name="rollover")

Data = Annotated[Path, typer.Option("--data", help="The broker's data directory.")]
Tenant = Annotated[
    str | None, typer.Option("--tenant", help="Whose client it is; needed among several tenants.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def issue(
    name: Annotated[str, typer.Argument(help="Who the client is: letters, digits, . - _")],
    data: Data = Path("var"),
    *,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to put the files, instead.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=365, help="How long it is valid.")] = 30,
    tenant: Tenant = None,
    new: Annotated[
        bool, typer.Option("--new", help="Make the authority of a broker that starts later.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Give a client a key and a certificate of the development authority.

    A broker of several tenants lets in only who says whose client it is: --tenant. An older
    certificate of the same name is replaced; it stays valid to its end. Exit code 3: there is
    no broker's directory. 9: the authority, or the name, cannot be used.
    """
    if not new:
        _require_broker(data)
    lifetime = timedelta(days=days)
    try:
        files = issue_client(data, name, utc_now(), lifetime=lifetime, out=out, tenant=tenant)
    except CertificatesUnusable as error:
        fail(str(error), Exit.CERTIFICATE)
    record_done(
        data, "CertificateIssued", files.identity, {"not_after": files.not_after.isoformat()}
    )
    typer.echo(json.dumps(_as_object(files)) if as_json else _as_text(files, mqtts_port(data)))


def _require_broker(data: Path) -> None:
    """End where no broker is: a new authority there would sign what no broker believes."""
    if (data / CLUSTER_FILE).exists() or (pki_directory(data) / AUTHORITY_FILE).exists():
        return
    fail(
        f"there is no broker in {data}: start one with `quantum up --data {data}`,"
        " say with --data where it is, or make its authority beforehand with --new",
        Exit.NOT_FOUND,
    )


@app.command()
def rotate(
    data: Data = Path("var"),
    *,
    node: Annotated[
        list[int] | None, typer.Option("--node", help="Only this node; may be repeated.")
    ] = None,
    listener: Annotated[
        bool, typer.Option("--listener/--no-listener", help="The MQTTS listener's, too.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Renew the certificates of nodes and listener while they run.

    Within a second or two they use the new ones for new connections; nobody is disconnected, and
    the old ones stay valid to their end. Exit code 3: no cluster here. 9: the authority.
    """
    now = utc_now()
    ends: dict[str, str] = {}
    try:
        for number, until in renew_nodes(data, tuple(map(NodeId, node or ())), now).items():
            ends[f"node {number}"] = until.isoformat()
        if listener and (pki_directory(data) / SERVER_FILE).exists():
            ends["listener"] = renew_server(data, now).isoformat()
        record_done(data, "CertificateRotated", " ".join(ends))
    except NodeError as error:
        fail(str(error), exit_of_node(error))
    except CertificatesUnusable as error:
        fail(str(error), Exit.CERTIFICATE)
    lines = [f"{name}: valid to {until}" for name, until in ends.items()]
    typer.echo(json.dumps({"not_after": ends}) if as_json else "\n".join(lines))


@app.command()
def revoke(
    name: Annotated[
        str | None, typer.Argument(help="The client whose newest certificate is revoked.")
    ] = None,
    data: Data = Path("var"),
    *,
    node: Annotated[int | None, typer.Option("--node", help="A node's, instead.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="This certificate, instead of the newest.")
    ] = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a certificate: its owner is disconnected, and its handshakes are refused.

    Give a client's name, or --node. Within two seconds a client that is connected is shown out
    (MQTT 5: Not authorized; its will is not said), and a node's connections end. Exit code 9: no
    such certificate, or another authority's.
    """
    if (name is None) == (node is None):
        fail("give either a client's name or --node", Exit.USAGE)
    try:
        if name is not None:
            certificate = file or client_certificate(data, name, tenant)
            serial = revoke_client(data, certificate, utc_now())
        else:
            assert node is not None
            pki = node_directory(data, NodeId(node)) / PKI_DIRECTORY
            serial = revoke_node(data, file or pki / CERTIFICATE_FILE, utc_now())
        record_done(data, "CertificateRevoked", name or f"node {node}", {"serial": f"{serial:x}"})
    except CertificatesUnusable as error:
        fail(str(error), Exit.CERTIFICATE)
    except NodeError as error:
        fail(str(error), exit_of_node(error))
    revoked = {"revoked": name or f"node {node}", "serial": f"{serial:x}"}
    text = f"revoked {revoked['revoked']}, certificate {revoked['serial']}"
    typer.echo(json.dumps(revoked) if as_json else text)


def _as_object(files: ClientFiles) -> dict[str, str]:
    return {
        "identity": files.identity,
        "certificate": str(files.certificate),
        "key": str(files.key),
        "authority": str(files.authority),
        "not_after": files.not_after.isoformat(),
    }


def _as_text(files: ClientFiles, port: int) -> str:
    paths = [shlex.quote(str(path)) for path in (files.authority, files.certificate, files.key)]
    authority, certificate, key = paths
    there = f"mosquitto_pub -h localhost -p {port}"
    publish = f"{there} --cafile {authority} --cert {certificate} --key {key}"
    own = f"{own_command()} pub --port {port} --ca {authority} --cert {certificate} --key {key}"
    return "\n".join(
        (
            f"{files.identity}, valid to {files.not_after:%Y-%m-%d %H:%M} UTC",
            f"  certificate  {files.certificate}",
            f"  key          {files.key}",
            f"  authority    {files.authority}",
            "Try it:",
            f"  {publish} -t hello -m world",
            f"  {own} hello world",
        )
    )
