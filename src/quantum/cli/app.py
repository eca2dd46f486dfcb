"""The command tree. Only the command that is asked for is imported: the others cost a second."""

from __future__ import annotations

import gc
import inspect
import signal
import sys
from collections.abc import Iterable
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any, Final

import typer
from typer.main import get_command

from quantum.cli.commands import COMMANDS
from quantum.cli.exits import Exit, fail, fail_path
from quantum.cli.naming import pasteable

_PATHS: Final = frozenset({"--data", "--out", "--keys", "--config", "--ca", "--cert", "--cert-key"})


def build(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Make the tree of these commands."""
    app = _root()
    for name in names:
        module, attribute, _ = COMMANDS[name]
        found = getattr(import_module(f"quantum.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            _make_pasteable(found)
            app.add_typer(found, name=name)
        else:
            app.command(name, help=pasteable(inspect.getdoc(found) or ""))(found)
    return app


def build_list() -> typer.Typer:
    """Make the tree of the names alone: what is misspelt is answered with what is alike."""
    app = _root()
    for name, command in COMMANDS.items():
        app.command(name, help=command.summary)(lambda: None)
    return app


def _root() -> typer.Typer:
    app = typer.Typer(
        name="quantum",
        help="A message broker whose acknowledgement means: fsynced on a quorum.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def _tree(
        *,
        version: Annotated[
            bool,
            typer.Option("--version", help="Say what runs here.", callback=_say, is_eager=True),
        ] = False,
    ) -> None:
        """A message broker whose acknowledgement means: fsynced on a quorum."""

    return app


def _say(asked: bool) -> None:
    if asked:
        from clustor.runtime.build import build as look

        typer.echo(f"quantum {look()}")
        raise typer.Exit


def _make_pasteable(app: typer.Typer) -> None:
    """Let the examples in the help of a tree name what works here."""
    for command in app.registered_commands:
        if command.callback is not None and not isinstance(command.help, str):
            command.help = pasteable(inspect.getdoc(command.callback) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _make_pasteable(group.typer_instance)


def _pasteable_command(app: typer.Typer) -> Any:
    """Make the commands, with options whose help names what works here, too."""
    command = get_command(app)
    waiting: list[Any] = [command]
    while waiting:
        each = waiting.pop()
        waiting += getattr(each, "commands", {}).values()
        for parameter in each.params:
            if getattr(parameter, "help", None):
                parameter.help = pasteable(parameter.help)
    return command


def _refuse_empty_paths(arguments: list[str]) -> None:
    """Refuse an empty path, which a script's unset variable is: it would mean `here`."""
    for given, value in pairwise((*arguments, None)):
        option, has_value, joined = given.partition("=") if given is not None else ("", "", "")
        if option in _PATHS and (joined if has_value else value) == "":
            fail(f"{option} is empty: say a path, or leave it out", Exit.USAGE)


def main() -> None:
    """Run the command line. What a path or a disk refuses is one line, as every other refusal."""
    if not __debug__:
        raise SystemExit("quantum: refusing to run under -O: the assertions are part of the safety")
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    app = build([asked]) if asked in COMMANDS else build_list()
    try:
        try:
            _refuse_empty_paths(sys.argv[1:])
            command = _pasteable_command(app)
            gc.enable()
            signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have begun something
            command()
        except OSError as error:
            fail_path(error)
    except typer.Exit as ended:
        raise SystemExit(ended.exit_code) from None
