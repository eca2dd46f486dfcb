"""`quantum cert rollover`: one authority takes the place of another, in three steps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from clustor.runtime.cluster_file import CLUSTER_FILE
from clustor.runtime.errors import CertificateUnusable, NodeError
from clustor.runtime.pki.authority_change import AuthorityPhase
from clustor.runtime.pki.authority_change_development import (
    AuthorityChange,
    begin_nodes,
    finish_nodes,
    nodes_standing,
    switch_nodes,
)
from clustor.runtime.pki.identity import AUTHORITY_FILE, PKI_DIRECTORY, utc_now
from quantum.cli.exits import Exit, fail
from quantum.cli.node_exits import exit_of_node
from quantum.cli.recording import record_done
from quantum.edge.errors import CertificatesUnusable
from quantum.edge.tls_development import (
    begin_clients,
    clients_standing,
    finish_clients,
    pki_directory,
    switch_clients,
)

app = typer.Typer(
    help="""Let a new authority take the place of the one that signs, while everything runs.

    Three steps, with time between them:

    begin: the new authority is trusted beside the old one. Nothing else changes. Give ca.pem, which
    has both now, to everybody who trusts this broker.

    switch: the new one signs. Nodes and listener get certificates of it; clients get theirs with
    `quantum cert issue` when you are ready. The old certificates are believed to their end.

    finish: the old authority is trusted no more. Who still has a certificate of it is disconnected
    and refused; nobody else notices.

    Nodes take each step up within two seconds. A step that was interrupted is given again.
    """,
    no_args_is_help=True,
)

TAKE_UP_SECONDS: Final = 3.0
"""Nodes look at their files every second."""


class Whose(StrEnum):
    """Which authority: each has its own, so that no client can pass for a node."""

    NODES = "nodes"
    CLIENTS = "clients"
    ALL = "all"


Data = Annotated[Path, typer.Option("--data", help="The broker's data directory.")]
Of = Annotated[
    Whose,
    typer.Option(
        "--of", help="nodes: nodes and the admin port. clients: the MQTTS listener and its clients."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Do it all the same.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def status(data: Data = Path("var"), *, of: Of = Whose.ALL, as_json: AsJson = False) -> None:
    """Show how far a rollover is, who is trusted, and who still stands on the old authority.

    Exit code 3: no cluster here. 9: an authority cannot be read.
    """
    _show(data, of, as_json=as_json)


@app.command()
def begin(data: Data = Path("var"), *, of: Of = Whose.ALL, as_json: AsJson = False) -> None:
    """Step 1: make a new authority, and trust it beside the one that signs.

    Exit code 3: no cluster here. 9: the last rollover was not finished.
    """
    now = utc_now()
    _step(
        data,
        of,
        "AuthorityRolloverBegun",
        lambda: begin_nodes(data, now),
        lambda: begin_clients(data, now),
    )
    _show(data, of, as_json=as_json)


@app.command()
def switch(
    data: Data = Path("var"), *, of: Of = Whose.ALL, force: Force = False, as_json: AsJson = False
) -> None:
    """Step 2: let the new authority sign, and renew nodes and listener with it.

    Every node must have taken up step 1 before: a few seconds are waited for. Clients keep their
    certificates; renew them with `quantum cert issue` before step 3. Exit code 9: not begun.
    """
    now = utc_now()
    if not force:
        _wait_for_nodes(data)
    _step(
        data,
        of,
        "AuthoritySwitched",
        lambda: switch_nodes(data, now),
        lambda: switch_clients(data, now),
    )
    _show(data, of, as_json=as_json)


@app.command()
def finish(
    data: Data = Path("var"), *, of: Of = Whose.ALL, force: Force = False, as_json: AsJson = False
) -> None:
    """Step 3: trust the old authority no more; whoever still stands on it is disconnected.

    Refused while a certificate that is kept here is of the old one, unless --force is given.
    Certificates that were given away are not known here. Exit code 1: somebody would be lost.
    9: the new authority does not sign yet.
    """
    left = [name for found in _standings(data, of).values() for name in found.of_others]
    if left and not force:
        fail(
            f"still of the old authority: {', '.join(left)}; renew them with `quantum cert issue` "
            "or `quantum cert rotate`, or give --force",
            Exit.FAILED,
        )
    _step(
        data,
        of,
        "AuthorityRolloverFinished",
        lambda: finish_nodes(data),
        lambda: finish_clients(data),
    )
    _show(data, of, as_json=as_json)


def _wait_for_nodes(data: Path) -> None:
    """Let nodes that run take up what was written last."""
    bundles = [data / PKI_DIRECTORY / AUTHORITY_FILE, pki_directory(data) / AUTHORITY_FILE]
    newest = max((file.stat().st_mtime for file in bundles if file.exists()), default=0.0)
    time.sleep(min(TAKE_UP_SECONDS, max(0.0, newest + TAKE_UP_SECONDS - time.time())))


def _step(
    data: Path, of: Whose, what: str, nodes: Callable[[], None], clients: Callable[[], None]
) -> None:
    with _telling():
        for whose in _wanted(data, of):
            (nodes if whose is Whose.NODES else clients)()
            record_done(data, what, f"authority of {whose.value}")


def _wanted(data: Path, of: Whose) -> list[Whose]:
    """Name the authorities that are meant; `all` are those that are there."""
    if of is not Whose.ALL:
        return [of]
    there = {
        Whose.NODES: data / CLUSTER_FILE,
        Whose.CLIENTS: pki_directory(data) / AUTHORITY_FILE,
    }
    found = [whose for whose, file in there.items() if file.exists()]
    if not found:
        fail(f"no cluster in {data}", Exit.NOT_FOUND)
    return found


def _standings(data: Path, of: Whose) -> dict[Whose, AuthorityChange]:
    with _telling():
        return {
            whose: nodes_standing(data) if whose is Whose.NODES else clients_standing(data)
            for whose in _wanted(data, of)
        }


@contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except CertificateUnusable as error:
        fail(str(error), Exit.CERTIFICATE)
    except NodeError as error:
        fail(str(error), exit_of_node(error))
    except CertificatesUnusable as error:
        fail(str(error), Exit.CERTIFICATE)


_NEXT: Final = {
    AuthorityPhase.NONE: "no rollover is under way",
    AuthorityPhase.BEGUN: "begun: both are trusted; next: quantum cert rollover switch",
    AuthorityPhase.SWITCHED: "switched: the new one signs; next: quantum cert rollover finish",
}


def _show(data: Path, of: Whose, *, as_json: bool) -> None:
    found = {whose.value: _as_object(each) for whose, each in _standings(data, of).items()}
    if as_json:
        typer.echo(json.dumps(found))
        return
    for whose, each in found.items():
        typer.echo(f"authority of {whose}: {_NEXT[AuthorityPhase(each['phase'])]}")
        for number, authority in enumerate(each["trusted"]):
            role = "signs  " if number == 0 else "trusted"
            typer.echo(f"  {role}  {authority['name']}, to {authority['not_after']}")
        if each["of_others"]:
            typer.echo(f"  of another than the one that signs: {', '.join(each['of_others'])}")


def _as_object(found: AuthorityChange) -> dict[str, Any]:
    return {
        "phase": found.phase.value,
        "trusted": [
            {
                "name": each.subject.rfc4514_string(),
                "serial": f"{each.serial_number:x}",
                "not_after": each.not_valid_after_utc.isoformat(),
            }
            for each in found.authorities
        ],
        "of_others": list(found.of_others),
    }
