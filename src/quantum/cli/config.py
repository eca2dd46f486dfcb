"""`quantum config`: what a broker would run with, and why."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from quantum.cli.exits import Exit, fail
from quantum.config import NAMES, Configuration, ConfigurationError, about, load

app = typer.Typer(help="Look at the configuration of a broker.", no_args_is_help=True)


@app.callback()
def _commands() -> None:
    """Keep `show` a command of its own, although it is the only one."""


@app.command()
def show(
    config: Annotated[Path | None, typer.Option("--config", help="A TOML file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the effective configuration of `quantum up`, and where each value comes from.

    Flags of `quantum up` come before QUANTUM_… variables, these before the file, and the file
    before the defaults. Exit code 2: a key or a value that is not allowed.
    """
    configuration = load_or_fail({}, config)
    if as_json:
        typer.echo(json.dumps(as_object(configuration)))
        return
    table = Table("setting", "value", "from", "what it is", box=None, header_style="bold")
    for name in NAMES:
        source = configuration.sources[name]
        table.add_row(name, configuration.shown(name), source, about(name))
    Console().print(table)


def load_or_fail(flags: dict[str, object], config: Path | None) -> Configuration:
    """Read the configuration, or end with one sentence."""
    try:
        return load(flags, os.environ, config)
    except ConfigurationError as error:
        fail(str(error), Exit.USAGE)


def as_object(configuration: Configuration) -> dict[str, dict[str, object]]:
    """Return every setting with its value and its source; numbers stay numbers."""
    values = {name: getattr(configuration.settings, name) for name in NAMES}
    return {
        name: {
            "value": value if isinstance(value, int) else configuration.shown(name),
            "source": configuration.sources[name],
        }
        for name, value in values.items()
    }
