"""`quantum spec`: what the wire says, as data."""

from __future__ import annotations

import typer

from clustor.wire import canonical, catalog, wide_int_registry

app = typer.Typer(help="Print what this build speaks, as canonical JSON.", no_args_is_help=True)


@app.command("catalog")
def print_catalog() -> None:
    """Print every message with its fields, the system log entries, the errors and the limits."""
    typer.echo(canonical(catalog()))


@app.command("wide-ints")
def print_wide_ints() -> None:
    """Print which fields are decimal strings in JSON."""
    typer.echo(canonical(wide_int_registry()))
