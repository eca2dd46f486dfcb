"""The command tree. Only the command that is asked for is imported: the others cost a second."""

from __future__ import annotations

import gc
import inspect
import signal
import sys
from collections.abc import Iterable
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.main import get_command

from quantum.cli.exits import Exit, fail, fail_path
from quantum.cli.naming import pasteable

_PATHS: Final = frozenset({"--data", "--out", "--keys", "--config", "--ca", "--cert", "--cert-key"})


class CommandEntry(NamedTuple):
    """Where a command is, and what the list of commands says of it."""

    module: str
    attribute: str
    summary: str


# In the order of the help.
COMMANDS: Final[dict[str, CommandEntry]] = {
    "up": CommandEntry(
        "up",
        "up",
        "Start a development broker in this process: one node, tenant `dev`, durable under DATA.",
    ),
    "pub": CommandEntry("pub", "pub", "Publish MESSAGE to TOPIC."),
    "sub": CommandEntry("sub", "sub", "Print messages of FILTER, until Ctrl-C or --count."),
    "status": CommandEntry(
        "broker", "status", "Show the broker's partitions: who serves them, and what is in them."
    ),
    "sessions": CommandEntry(
        "broker", "sessions", "List sessions: connected clients, and those that will come back."
    ),
    "session": CommandEntry("broker", "session_app", "Look at one session, or end it."),
    "why": CommandEntry(
        "why", "why", "Say what stands in the way of a client or of a group, in sentences."
    ),
    "explain": CommandEntry("explain", "app", "Say which rule decides."),
    "doctor": CommandEntry(
        "doctor", "doctor", "Examine a node, or a whole cluster, from outside, and say what to do."
    ),
    "scrub": CommandEntry(
        "scrub",
        "scrub",
        "Read every log again now, past the page cache, and authenticate every byte of it.",
    ),
    "streams": CommandEntry("streams", "app", "Messages kept by offset: captured, read, replayed."),
    "queues": CommandEntry("queues", "app", "AMQP's queues: made, looked at, emptied, moved."),
    "amqp": CommandEntry("amqp", "app", "Send messages to AMQP's queues, and receive them."),
    "tenants": CommandEntry("tenants", "app", "Look at tenants' rings, or let one grow."),
    "kafka": CommandEntry("kafka", "app", "Kafka's topics, groups, records, transactions."),
    "users": CommandEntry(
        "users", "app", "Users of a tenant: who may come by a user name and a password."
    ),
    "topics": CommandEntry("broker", "topics", "List the filters that clients subscribe to."),
    "retained": CommandEntry("broker", "retained", "List retained messages."),
    "bench": CommandEntry("bench", "app", "Put load on a broker."),
    "cert": CommandEntry(
        "cert", "app", "Issue, renew and revoke certificates of a development broker."
    ),
    "keys": CommandEntry("keys", "app", "Keys: which there are, and new ones."),
    "node": CommandEntry("enrol", "app", "Run the node of a host; let new nodes into a cluster."),
    "audit": CommandEntry("audit", "app", "Verify and read a node's audit log."),
    "traces": CommandEntry(
        "traces", "traces", "Print traces of messages, over all nodes of a cluster."
    ),
    "admin": CommandEntry(
        "admin",
        "app",
        "Read and change what the control plane holds: nodes, tenants, groups, configuration,"
        " keys.",
    ),
    "archive": CommandEntry(
        "archive",
        "app",
        "Look at an archive of closed segments and snapshots; let go of the oldest.",
    ),
    "backup": CommandEntry(
        "backup", "app", "Points in time that a cluster's archive can be gone back to."
    ),
    "restore": CommandEntry(
        "restore",
        "restore",
        "Make a cluster's directory out of an archive and the keys that sealed it, and nothing"
        " else.",
    ),
    "at": CommandEntry(
        "restore",
        "at",
        "Look at a broker as it stood at a moment, out of its archive: the living one is not"
        " asked.",
    ),
    "drill": CommandEntry("backup", "drill_app", "Practise what must work one day."),
    "lake": CommandEntry(
        "lake", "app", "Logs as tables: ingest, verify, replay, and what can be asked of them."
    ),
    "config": CommandEntry("config", "app", "Look at the configuration of a broker."),
    "cluster": CommandEntry(
        "cluster",
        "app",
        "Run a development cluster on this machine, look at a cluster, change its members.",
    ),
    "kv": CommandEntry("kv", "app", "Read and write the replicated key-value store of a cluster."),
    "log": CommandEntry(
        "log",
        "app",
        "Look into a log on disk: verify it, print its entries, measure it. Reads only.",
    ),
    "sim": CommandEntry(
        "sim",
        "sim",
        "Run clusters of 3 to 7 nodes under drawn faults, and judge them from outside.",
    ),
    "selftest": CommandEntry(
        "selftest",
        "selftest",
        "Rerun the specification's vectors with the code that handles real data.",
    ),
    "spec": CommandEntry("spec", "app", "Print what this build speaks, as canonical JSON."),
}


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
    """Make the tree as the list of commands shows it, without one of them."""
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
