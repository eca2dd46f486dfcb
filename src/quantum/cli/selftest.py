"""`quantum selftest`: the specification's vectors, on demand."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from clustor.selftest import run_selftest, selftest_digest
from quantum.cli.exits import Exit


def selftest(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Rerun the specification's vectors with the code that handles real data.

    Exit code 0: all came out. 1: at least one did not, and this build must not open a log.
    """
    checks = run_selftest()
    failed = sum(1 for check in checks if not check.passed)
    if as_json:
        found = {"checks": [asdict(check) for check in checks], "digest": selftest_digest(checks)}
        typer.echo(json.dumps({"passed": not failed, **found}))
    else:
        table = Table(title="Self-test")
        for heading in ("vector", "from", "result"):
            table.add_column(heading)
        for check in checks:
            table.add_row(check.name, check.source, "ok" if check.passed else check.detail)
        Console().print(table)
        typer.echo(f"{len(checks) - failed} passed, {failed} failed")
    raise typer.Exit(Exit.FAILED if failed else 0)
