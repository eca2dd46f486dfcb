"""`pub` and `sub` as a command of their own, for tests."""

from __future__ import annotations

import typer

from quantum.cli.pub import pub
from quantum.cli.sub import sub

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(pub)
app.command()(sub)

if __name__ == "__main__":
    app()
