"""The command tree. Only the command that is asked for is imported: the others cost a second."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Final

import typer

# Each command, in the order of the help: its module, and the function or the tree in it.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "up": ("up", "up"),
    "pub": ("pub", "pub"),
    "sub": ("sub", "sub"),
    "status": ("broker", "status"),
    "sessions": ("broker", "sessions"),
    "session": ("broker", "session_app"),
    "why": ("why", "why"),
    "doctor": ("doctor", "doctor"),
    "scrub": ("scrub", "scrub"),
    "tenants": ("tenants", "app"),
    "topics": ("broker", "topics"),
    "retained": ("broker", "retained"),
    "bench": ("bench", "app"),
    "cert": ("cert", "app"),
    "keys": ("keys", "app"),
    "node": ("enrol", "app"),
    "audit": ("audit", "app"),
    "admin": ("admin", "app"),
    "archive": ("archive", "app"),
    "lake": ("lake", "app"),
    "config": ("config", "app"),
    "cluster": ("cluster", "app"),
    "kv": ("kv", "app"),
    "log": ("log", "app"),
    "sim": ("sim", "sim"),
    "selftest": ("selftest", "selftest"),
    "spec": ("spec", "app"),
}


def build(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Make the tree of these commands."""
    app = typer.Typer(
        name="quantum",
        help="A message broker whose acknowledgement means: fsynced on a quorum.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def _tree() -> None:
        """Keep a command a command, however few there are."""

    for name in names:
        module, attribute = COMMANDS[name]
        found = getattr(import_module(f"quantum.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def main() -> None:
    """Run the command line."""
    if not __debug__:
        raise SystemExit("quantum: refusing to run under -O: the assertions are part of the safety")
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    build([asked] if asked in COMMANDS else COMMANDS)()
