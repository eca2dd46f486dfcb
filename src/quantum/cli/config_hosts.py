"""`quantum config check` and `diff`: files of production nodes, before they are in force."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from clustor.runtime.pki.identity import utc_now
from quantum.cli.exits import Exit, fail
from quantum.config import ConfigurationError, EffectiveSettings, is_host_file, load, load_host
from quantum.config.settings import names_of

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def check(
    file: Annotated[Path, typer.Argument(help="A node's quantum.toml.")], *, as_json: AsJson = False
) -> None:
    """Look at a node's file, its certificates and its keys, before the node is started with it.

    The key's source is asked, too. Nothing is written, and no port is opened.

    Example: quantum config check /etc/quantum/quantum.toml

    Exit code 0: it can start. 1: something keeps it from starting, or will soon. 2: a setting.
    """
    from quantum.node.host_checks import check_host

    try:
        settings = load_host(file).settings
    except ConfigurationError as error:
        fail(str(error), Exit.USAGE)
    findings = check_host(settings, utc_now())
    if as_json:
        typer.echo(json.dumps({"file": str(file), "findings": [asdict(each) for each in findings]}))
    else:
        for each in findings:
            typer.echo(f"{'warning' if each.is_warning else 'error'}: {each.key}: {each.problem}")
        if not findings:
            typer.echo(f"node {settings.node} of {settings.cluster} can start with {file}")
    raise typer.Exit(Exit.FAILED if findings else 0)


def diff(
    first: Annotated[Path, typer.Argument(help="A file.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Say in which settings two files differ, as they take effect: defaults count.

    Exit code 0: in none. 1: in some. 2: a key or a value that is not allowed.
    """
    one, other = load_any(first), load_any(second)
    tables = {type(each.settings) for each in (one, other)}
    if len(tables) != 1:
        fail("one is a host's file, the other a development broker's", Exit.USAGE)
    names = names_of(tables.pop())
    found = {
        name: (one.shown(name), other.shown(name))
        for name in names
        if one.shown(name) != other.shown(name)
    }
    if as_json:
        typer.echo(json.dumps(found))
    else:
        for name, (before, after) in found.items():
            typer.echo(f"{name}: {before} → {after}")
    raise typer.Exit(Exit.FAILED if found else 0)


def load_any(file: Path) -> EffectiveSettings[Any]:
    """Read a host's file, or a development broker's; ends with one sentence."""
    try:
        return load_host(file) if is_host_file(file) else load({}, {}, file)
    except ConfigurationError as error:
        fail(str(error), Exit.USAGE)
