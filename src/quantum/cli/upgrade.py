"""`quantum cluster upgrade`: another build on every node, one after the other, under load."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from clustor.runtime.build import build
from quantum.cli.admin_client import AdminUnreachable, fail_unreachable
from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail
from quantum.cli.members import addresses_of
from quantum.cli.rolling import NodeBuild, RollingUpgrade, UpgradeStopped, UpgradeTimedOut


@speaking
def upgrade(
    *,
    data: Annotated[Path | None, typer.Option(help="The cluster's directory.")] = None,
    admin: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The admin address of any node.")
    ] = None,
    run: Annotated[bool, typer.Option("--run/--plan", help="Do it, or only say what.")] = False,
    to: Annotated[
        str | None,
        typer.Option(metavar="VERSION+COMMIT", help="The wanted build; by default this command's."),
    ] = None,
    restart: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Runs for each node when it is drained; {node} and {host} are filled in. "
            "Without it the command says when to restart which node, and waits.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for each step.")] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Bring every node to another build, one at a time, while the others serve.

    Each node's turn: the cluster must be able to do without it; it is drained (leaderships and
    clients leave); it is restarted on the new build; it catches up; it may lead again. Nothing is
    written down: a run that stopped is begun again with the same command. Going back is the same,
    with the earlier build's `quantum`, or --to. A node refuses to start on data that a later
    release wrote (exit code 7 there): restart it on the later one, and this goes on.

    Example: quantum cluster upgrade --data prod/operator --run --restart
    'ssh {host} pip install -q quantum.whl && systemctl restart quantum'

    Exit code 1: not fit for it, or a step failed. 12: a step was not over in time.
    """
    wanted = to or f"{build().version}+{build().commit[:12]}"
    rolling = RollingUpgrade(addresses_of(admin, data), wanted, restart, timeout, _say)
    try:
        plan = rolling.plan()
        done = rolling.run() if run else []
    except UpgradeStopped as error:
        fail(str(error), Exit.FAILED)
    except UpgradeTimedOut as error:
        fail(str(error), Exit.UNREACHABLE)
    except AdminUnreachable as error:
        fail_unreachable(error)
    if as_json:
        nodes = [_facts(node, wanted) for node in plan]
        typer.echo(json.dumps({"wanted": wanted, "nodes": nodes, "upgraded": done}))
    elif run:
        typer.echo(f"every node runs {wanted}; {len(done)} of {len(plan)} were upgraded")
    else:
        _show(plan, wanted)


def _facts(node: NodeBuild, wanted: str) -> dict[str, Any]:
    return asdict(node) | {"admin": str(node.admin), "waits": not node.runs(wanted)}


def _show(plan: list[NodeBuild], wanted: str) -> None:
    typer.echo(f"to {wanted}, in this order; --run does it")
    for node in plan:
        leads = f"leads {len(node.leads)}" if node.leads else "leads nothing"
        todo = "stays as it is" if node.runs(wanted) else "drain, restart, catch up"
        drained = "  drained" if node.is_draining else ""
        typer.echo(f"node {node.node_id}  {node.admin}  {node.build}  {leads}{drained}  {todo}")


def _say(line: str) -> None:
    typer.echo(line, err=True)
