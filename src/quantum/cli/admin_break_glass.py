"""`quantum admin break-glass certificate`: five minutes, one scope, one use (clustor §12.3)."""

from __future__ import annotations

import json
import os
import shlex
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from clustor.control import OverrideScope
from clustor.control.types import CLOCK_SKEW_MS
from clustor.log.errors import KeyUnavailable
from clustor.runtime.cluster_file import CLUSTER_FILE, read_cluster_file
from clustor.runtime.errors import CertificateUnusable, NodeError
from clustor.runtime.pki.certificate_files import replace_file
from clustor.runtime.pki.identity import (
    AUTHORITY_FILE,
    PKI_DIRECTORY,
    DevelopmentAuthority,
    Issued,
    issue_certificate,
    load_authority,
    utc_now,
)
from quantum.admin.break_glass import scope_of, token_id_of
from quantum.admin.identity import GLASS, serial_name
from quantum.cli.admin_api import AdminApi
from quantum.cli.admin_asking import ADMIN_DEFAULT, Admin, fail_told, telling
from quantum.cli.admin_client import parse_address
from quantum.cli.consoles import errors
from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail
from quantum.cli.keys_office import open_office
from quantum.cli.node_exits import exit_of_node

SECONDS_MAX: Final = 300
_SKEW: Final = timedelta(milliseconds=CLOCK_SKEW_MS)


@speaking
def glass_certificate(
    scope: Annotated[OverrideScope, typer.Argument(help="What it is for.")],
    actor: Annotated[str, typer.Argument(help="Who uses it: spiffe://CLUSTER/operator/ada")],
    *,
    ticket: Annotated[str, typer.Option(help="The ticket that tells why (a URL).")],
    data: Annotated[Path, typer.Option("--data", help="The cluster's directory.")],
    out: Annotated[Path, typer.Option(help="Where to put certificate and key.")],
    seconds: Annotated[
        int, typer.Option(min=1, max=SECONDS_MAX, help="How long it is valid.")
    ] = SECONDS_MAX,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Issue a certificate for an emergency: one scope, one use, five minutes at most.

    An Operator registers it with the control plane, where scope, actor and ticket are on record;
    then it is its own token, and opens nothing but calls of its scope. Its file is overwritten and
    deleted when `quantum admin` has used it. It cannot be renewed.

    Example: quantum admin break-glass certificate Quarantine spiffe://dev/operator/ada
    --ticket https://tickets/1 --data var --out glass.pem

    Exit code 3: not a cluster's directory. 9: the authority cannot be used. 12: no node answered.
    """
    issued = _issue(_authority(data, seconds), scope, actor, timedelta(seconds=seconds))
    serial = x509.load_pem_x509_certificate(issued.certificate_pem).serial_number
    body = {
        "token_id": token_id_of(serial_name(serial)),
        "scope": scope.value,
        "actor_id": actor,
        "ticket_url": ticket,
        "ttl_ms": seconds * 1000,
    }
    try:
        api = AdminApi(parse_address(admin))
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    with telling():
        told = api.ask("POST", "/v1/break-glass", body=body)
    if not told.is_done:
        fail_told(told)
    replace_file(out, issued.certificate_pem + issued.key_pem, 0o600)
    facts = {"token_id": body["token_id"], "certificate": str(out)}
    facts |= {"not_after": issued.not_after.isoformat()}
    flags = f"--cert {shlex.quote(str(out))} --ca {data / PKI_DIRECTORY / AUTHORITY_FILE}"
    text = f"{actor} may use it once for {scope.value}, to {issued.not_after}: {flags}"
    typer.echo(json.dumps(facts) if as_json else text)


def _authority(data: Path, seconds: int) -> DevelopmentAuthority:
    """Return the BreakGlassTokenCA in force; where none was ever made, the cluster's authority."""
    try:
        dedicated = open_office(data).glass_authority(timedelta(seconds=seconds))
        cluster = read_cluster_file(data / CLUSTER_FILE)
        return dedicated or load_authority(data / PKI_DIRECTORY, cluster.id)
    except CertificateUnusable as error:
        fail(str(error), Exit.CERTIFICATE)
    except (KeyUnavailable, OSError) as error:
        fail(str(error), Exit.WRONG_KEY)
    except NodeError as error:
        fail(str(error), exit_of_node(error))


def _issue(
    authority: DevelopmentAuthority, scope: OverrideScope, actor: str, lifetime: timedelta
) -> Issued:  # fmt: skip
    if not actor.startswith(f"spiffe://{authority.cluster_id}/"):
        fail(f"an actor of this cluster is spiffe://{authority.cluster_id}/…", Exit.USAGE)
    return issue_certificate(
        authority,
        f"break-glass {scope.value}",
        [
            x509.UniformResourceIdentifier(actor),
            x509.UniformResourceIdentifier(GLASS + scope.value),
        ],
        [ExtendedKeyUsageOID.CLIENT_AUTH],
        now=utc_now(),
        lifetime=lifetime,
        skew=_SKEW,
    )


def forget_used(certificate: Path | None) -> None:
    """Overwrite and delete a break-glass certificate and its key, after their one use."""
    if certificate is None:
        return
    try:
        content = certificate.read_bytes()
        if scope_of(x509.load_pem_x509_certificate(content)) is None:
            return
        with certificate.open("r+b") as file:
            file.write(bytes(len(content)))
            file.flush()
            os.fsync(file.fileno())
        certificate.unlink()
    except (OSError, ValueError) as error:
        line = f"quantum: done, but the used certificate is still there: {error}"
        errors.print(line, markup=False, highlight=False)
