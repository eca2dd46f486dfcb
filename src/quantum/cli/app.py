"""The command tree."""

from __future__ import annotations

import typer

from quantum.cli import broker
from quantum.cli.cert import app as cert_app
from quantum.cli.cluster import app as cluster_app
from quantum.cli.config import app as config_app
from quantum.cli.kv import app as kv_app
from quantum.cli.log import app as log_app
from quantum.cli.pub import pub
from quantum.cli.selftest import selftest
from quantum.cli.sim import sim
from quantum.cli.spec import app as spec_app
from quantum.cli.sub import sub
from quantum.cli.up import up

app = typer.Typer(
    name="quantum",
    help="A message broker whose acknowledgement means: fsynced on a quorum.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up)
app.command("pub")(pub)
app.command("sub")(sub)
app.add_typer(cert_app, name="cert")
app.add_typer(config_app, name="config")
app.add_typer(cluster_app, name="cluster")
app.add_typer(kv_app, name="kv")
app.add_typer(log_app, name="log")
app.add_typer(spec_app, name="spec")
app.command("status")(broker.status)
app.command("sessions")(broker.sessions)
app.command("topics")(broker.topics)
app.command("retained")(broker.retained)
app.add_typer(broker.session_app, name="session")
app.command("selftest")(selftest)
app.command("sim")(sim)


def main() -> None:
    """Run the command line."""
    if not __debug__:
        raise SystemExit("quantum: refusing to run under -O: the assertions are part of the safety")
    app()
