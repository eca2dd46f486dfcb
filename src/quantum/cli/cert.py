"""`quantum cert`: certificates for the clients of a development broker."""

from __future__ import annotations

import json
import shlex
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from clustor.runtime.pki import utc_now
from quantum.cli.exits import Exit, fail
from quantum.edge.errors import CertificatesUnusable
from quantum.edge.tls_development import ClientFiles, issue_client

app = typer.Typer(
    help="Issue certificates for the clients of a development broker.", no_args_is_help=True
)


@app.callback()
def _commands() -> None:
    """Keep `issue` a command of its own, although it is the only one."""


@app.command()
def issue(
    name: Annotated[str, typer.Argument(help="Who the client is: letters, digits, . - _")],
    data: Annotated[Path, typer.Option("--data", help="The broker's data directory.")] = Path(
        "var"
    ),
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to put the files, instead.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=365, help="How long it is valid.")] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Give a client a key and a certificate of the development authority.

    An older certificate of the same name is replaced; it stays valid to its end. Exit code 9:
    the authority, or the name, cannot be used.
    """
    lifetime = timedelta(days=days)
    try:
        files = issue_client(data, name, utc_now(), lifetime=lifetime, out=out)
    except CertificatesUnusable as error:
        fail(str(error), Exit.CERTIFICATE)
    typer.echo(json.dumps(_as_object(files)) if as_json else _as_text(files))


def _as_object(files: ClientFiles) -> dict[str, str]:
    return {
        "identity": files.identity,
        "certificate": str(files.certificate),
        "key": str(files.key),
        "authority": str(files.authority),
        "not_after": files.not_after.isoformat(),
    }


def _as_text(files: ClientFiles) -> str:
    paths = [shlex.quote(str(path)) for path in (files.authority, files.certificate, files.key)]
    publish = "mosquitto_pub -h localhost -p 8883 --cafile {} --cert {} --key {}".format(*paths)
    own = "quantum pub --tls --port 8883 --ca {} --cert {} --key {}".format(*paths)
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
