"""The commands for people as a program of their own, for tests."""

from __future__ import annotations

import typer

from quantum.cli.cert import app as cert_app
from quantum.cli.config import app as config_app
from quantum.cli.pub import pub
from quantum.cli.sub import sub
from quantum.cli.up import up

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(pub)
app.command()(sub)
app.command()(up)
app.add_typer(cert_app, name="cert")
app.add_typer(config_app, name="config")

if __name__ == "__main__":
    app()
