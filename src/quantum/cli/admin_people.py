"""`quantum admin roles bind|unbind` and `quantum admin certificate`: letting people in, and out."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from clustor.control import AccessRole
from clustor.runtime.cluster_file import CLUSTER_FILE, read_cluster_file
from clustor.runtime.errors import CertificateUnusable, NodeError
from clustor.runtime.pki.certificate_files import replace_file
from clustor.runtime.pki.identity import (
    AUTHORITY_FILE,
    PKI_DIRECTORY,
    issue_certificate,
    load_authority,
    utc_now,
)
from quantum.cli.admin_api import AdminApi
from quantum.cli.admin_asking import (
    ADMIN_DEFAULT,
    Admin,
    AsJson,
    fail_told,
    telling,
)
from quantum.cli.admin_client import parse_address
from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail
from quantum.cli.naming import own_command
from quantum.cli.node_exits import exit_of_node

_NAME: Final = r"[a-z0-9]+(/[a-z0-9._-]+)*"


def bound(
    bindings: list[dict[str, Any]], identity: str, role: AccessRole, tenant: str | None
) -> list[dict[str, Any]]:
    """Return the bindings with one more; a binding that is there stays one."""
    fresh = {"identity": identity, "role": role.value, "tenant_id": tenant}
    return [*(each for each in bindings if each != fresh), fresh]


def unbound(
    bindings: list[dict[str, Any]], identity: str, role: AccessRole | None
) -> list[dict[str, Any]]:
    """Return the bindings without those of an identity, or without one role of it."""
    wanted = None if role is None else role.value
    return [
        each
        for each in bindings
        if each["identity"] != identity or wanted not in (None, each["role"])
    ]


Identity = Annotated[str, typer.Argument(help="A SPIFFE URI: spiffe://CLUSTER/operator/ada")]


@speaking
def bind(
    identity: Identity,
    role: Annotated[AccessRole, typer.Argument(help="What it may do.")],
    *,
    tenant: Annotated[str | None, typer.Option(help="A TenantAdmin's tenant.")] = None,
    admin: Admin = ADMIN_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Give an identity a role; the others keep theirs.

    Example: quantum admin roles bind spiffe://prod/operator/ada Operator
    """
    api = _api(admin)
    _change(api, lambda held: bound(held, identity, role, tenant), as_json=as_json)


@speaking
def unbind(
    identity: Identity,
    role: Annotated[AccessRole | None, typer.Argument(help="Only this role.")] = None,
    *,
    admin: Admin = ADMIN_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Take an identity's roles away, or one of them. The last Operator stays.

    Example: quantum admin roles unbind spiffe://prod/operator/ada
    """
    api = _api(admin)
    _change(api, lambda held: unbound(held, identity, role), as_json=as_json)


def _api(admin: str) -> AdminApi:
    try:
        return AdminApi(parse_address(admin))
    except ValueError as error:
        fail(str(error), Exit.USAGE)


def _change(
    api: AdminApi,
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
    *,
    as_json: bool,
) -> None:
    """Read the manifest, change it, and publish it under the version that was read."""
    with telling():
        told = api.ask("GET", "/v1/roles")
        if told.is_done:
            fresh = change(told.body["bindings"])
            body = {"expected_version": told.body["version"], "bindings": fresh}
            told = api.ask("PUT", "/v1/roles", body=body)
    if not told.is_done:
        fail_told(told)
    version = told.body["result"]["version"]
    typer.echo(json.dumps(told.body) if as_json else f"the roles are now of version {version}")


def issue(
    name: Annotated[
        str, typer.Argument(help="The identity's path below the cluster: operator/ada")
    ],
    *,
    data: Annotated[Path, typer.Option("--data", help="The cluster's directory.")],
    out: Annotated[Path | None, typer.Option(help="Where to put the file, instead.")] = None,
    days: Annotated[int, typer.Option(min=1, max=30, help="How long it is valid.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Issue a client certificate that names you to the admin port, by the development authority.

    What you may do with it is said by the roles: `quantum admin roles bind`. The authority's key
    must be in DATA: on any other machine ask whoever has it.

    Example: quantum admin certificate operator/ada --data var

    Exit code 3: not a cluster's directory. 9: the authority cannot be used, or the name.
    """
    try:
        cluster = read_cluster_file(data / CLUSTER_FILE)
        authority = load_authority(data / PKI_DIRECTORY, cluster.id)
    except CertificateUnusable as error:
        fail(str(error), Exit.CERTIFICATE)
    except NodeError as error:
        fail(str(error), exit_of_node(error))
    identity = _identity(cluster.cluster_id, name)
    issued = issue_certificate(
        authority,
        name.replace("/", " "),
        [x509.UniformResourceIdentifier(identity)],
        [ExtendedKeyUsageOID.CLIENT_AUTH],
        now=utc_now(),
        lifetime=timedelta(days=days),
    )
    file = out or data / PKI_DIRECTORY / f"{name.replace('/', '-')}.pem"
    replace_file(file, issued.certificate_pem + issued.key_pem, 0o600)
    facts = {
        "identity": identity,
        "certificate": str(file),
        "authority": str(data / PKI_DIRECTORY / AUTHORITY_FILE),
        "not_after": issued.not_after.isoformat(),
    }
    typer.echo(json.dumps(facts) if as_json else _as_text(facts))


def _identity(cluster: str, name: str) -> str:
    if not re.fullmatch(_NAME, name) or name.startswith("node/"):
        fail(f"not a name like operator/ada, or a node's: {name}", Exit.CERTIFICATE)
    return f"spiffe://{cluster}/{name}"


def _as_text(facts: dict[str, str]) -> str:
    flags = f"--cert {shlex.quote(facts['certificate'])} --ca {shlex.quote(facts['authority'])}"
    return "\n".join(
        (
            f"{facts['identity']}, valid to {facts['not_after']}",
            f"  certificate and key  {facts['certificate']}",
            f"  authority            {facts['authority']}",
            "Try it:",
            f"  {own_command()} admin nodes list {flags}",
        )
    )
