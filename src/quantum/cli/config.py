"""`quantum config`: what a broker would run with, and why."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from quantum.cli.config_hosts import check, diff, load_any
from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail
from quantum.cli.naming import pasteable
from quantum.config import (
    ConfigurationError,
    EffectiveSettings,
    Settings,
    about,
    is_host_file,
    load,
)
from quantum.config.settings import names_of

app = typer.Typer(help="Look at the configuration of a broker.", no_args_is_help=True)
app.command("check")(check)
app.command("diff")(diff)


@app.command()
def show(
    config: Annotated[Path | None, typer.Option("--config", help="A TOML file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the effective configuration of `quantum up`, and where each value comes from.

    A production node's file says all by itself: no variable and no flag changes it.

    Flags of `quantum up` come before QUANTUM_… variables, these before the file, and the file
    before the defaults. Exit code 2: a key or a value that is not allowed.
    """
    is_host = config is not None and config.exists() and is_host_file(config)
    configuration = load_any(config) if config is not None and is_host else load_or_fail({}, config)
    if as_json:
        typer.echo(json.dumps(as_object(configuration)))
        return
    kind = type(configuration.settings)
    table = Table("setting", "value", "from", "what it is", box=None, header_style="bold")
    for name in names_of(kind):
        source = configuration.sources[name]
        table.add_row(name, configuration.shown(name), source, about(name, kind))
    Console().print(table)


@app.command("explain")
@speaking
def explain_key(
    key: Annotated[str, typer.Argument(help="A setting, or a key of the control plane.")],
    *,
    config: Annotated[Path | None, typer.Option("--config", help="A TOML file.")] = None,
    flag: Annotated[
        str | None, typer.Option("--flag", help="As if `quantum up` had this for KEY's flag.")
    ] = None,
    admin: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", envvar="QUANTUM_ADMIN", help="The broker to ask."),
    ] = "127.0.0.1:9080",
    node: Annotated[str | None, typer.Option(help="As this node sees it.")] = None,
    partition: Annotated[str | None, typer.Option(help="As this partition sees it.")] = None,
    tenant: Annotated[str | None, typer.Option(help="As this tenant sees it.")] = None,
    definition: Annotated[str | None, typer.Option(help="As this definition sees it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what KEY is, where its value comes from, who set it, and when.

    Local settings go from the default over the file and the environment to the flag: the last
    that says something is in force. They are the bootstrap: what the control plane sets of the
    keys that brokers take from it wins over all of them, while they run. The same holds for
    tenants: `broker.json` and `tenants.toml` describe them until the control plane has a record
    of its own (quotas, access rules, trust, rings), which wins from then on, kind by kind.

    Example: quantum config explain queue_bytes_max --config broker.toml

    Example: quantum config explain rates.publishes --tenant acme

    Exit code 2: a value that is not allowed. 3: nobody sets KEY.
    """
    from quantum.cli import config_layers as of

    scopes = {"node": node, "partition": partition, "tenant": tenant, "definition": definition}
    asked = {name: value for name, value in scopes.items() if value is not None}
    name = key.replace("-", "_")
    held: of.Layer | str | None = None
    try:
        layers = of.built_in(name, tenant) or of.local_layers(name, os.environ, config, flag)
        if tenant is not None and name in of.QUOTA_NAMES:
            held = of.quota_layer(admin, name, tenant)
        if held is None:
            held = of.control_layer(admin, key, asked)
    except (ConfigurationError, ValueError) as error:
        fail(str(error), Exit.USAGE)
    notes = [held] if isinstance(held, str) else []
    if isinstance(held, of.Layer):
        notes.append(f"set in the control plane, it takes effect: {held.takes_effect}")
        layers = [*layers, held] if held.is_taken else [held, *layers]
    if not layers:
        known = f"`quantum config show` lists the settings; {notes[0]}"
        fail(f"nobody sets {key}: {known}", Exit.NOT_FOUND)
    if of.knows(name):
        notes.insert(0, pasteable(of.how_to_set(name)))
    _print_layers(key, [asdict(layer) for layer in layers], notes, as_json=as_json)


def _print_layers(
    key: str, layers: list[dict[str, object]], notes: list[str], *, as_json: bool
) -> None:
    in_force = layers[-1]
    if as_json:
        typer.echo(json.dumps({"key": key, **in_force, "layers": layers, "notes": notes}))
        return
    typer.echo(f"{key} is {in_force['value']}, from {in_force['source']}")
    table = Table("", "layer", "value", "from", "set by", "set at", box=None, header_style="bold")
    for layer in layers:
        mark = "→" if layer is in_force else ""
        cells = ("layer", "value", "source", "set_by", "set_at")
        table.add_row(mark, *(str(layer[name]) for name in cells))
    Console().print(table)
    for note in notes:
        typer.echo(note)


def load_or_fail(flags: dict[str, object], config: Path | None) -> EffectiveSettings[Settings]:
    """Read the configuration, or end with one sentence."""
    try:
        return load(flags, os.environ, config)
    except ConfigurationError as error:
        fail(str(error), Exit.USAGE)


def as_object(configuration: EffectiveSettings[Any]) -> dict[str, dict[str, object]]:
    """Return every setting with its value and its source; numbers stay numbers."""
    names = names_of(type(configuration.settings))
    values = {name: getattr(configuration.settings, name) for name in names}
    return {
        name: {
            "value": value if isinstance(value, int) else configuration.shown(name),
            "source": configuration.sources[name],
        }
        for name, value in values.items()
    }
