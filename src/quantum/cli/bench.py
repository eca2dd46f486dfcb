"""`quantum bench`: put load on a broker, and say what it did."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from quantum.cli import mqtt_client as cli
from quantum.cli.exits import Exit, fail
from quantum.client import Endpoint
from quantum.client.load import LoadPlan, LoadRun, percentile

app = typer.Typer(help="Put load on a broker.", no_args_is_help=True)

_SHARES = (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))


@app.callback()
def _commands() -> None:
    """Put load on a broker."""


@app.command()
def mqtt(
    *,
    publishers: Annotated[int, typer.Option(min=1, max=10_000, help="Clients that publish.")] = 50,
    subscribers: Annotated[int, typer.Option(min=0, max=10_000, help="That take it all.")] = 0,
    qos: cli.Qos = 1,
    size: Annotated[int, typer.Option(min=0, max=1 << 20, help="Bytes of a message.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long.")] = 10.0,
    window: Annotated[int, typer.Option(min=1, max=1_000, help="Open publishes a client.")] = 10,
    rate: Annotated[float, typer.Option(min=0, help="Publishes a second; 0: all it takes.")] = 0,
    topic: Annotated[str, typer.Option(help="Where the topics begin.")] = "bench",
    proto: cli.Proto = cli.Protocol.V5,
    host: cli.Host = "127.0.0.1",
    port: cli.Port = None,
    tls: cli.Tls = False,
    ca: cli.Ca = None,
    cert: cli.Cert = None,
    key: cli.Key = None,
    server_name: cli.ServerName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Publish as fast as the broker acknowledges, or at a rate, and show rates and latencies.

    This generator is Python and runs in one process: it saturates at some ten thousand publishes
    a second, and then shows its own limit. Exit code 1: a connection was lost or a publish was
    refused. 12: nothing answers there.
    """
    endpoint = cli.endpoint_of(
        host, port, tls=tls, ca=ca, cert=cert, key=key, server_name=server_name
    )
    plan = LoadPlan(
        publishers, subscribers, qos, size, seconds, window, rate, topic, cli.VERSIONS[proto]
    )
    load = cli.run(_run(endpoint, plan, live=not as_json))
    typer.echo(json.dumps(_as_object(load))) if as_json else Console().print(_table(load))
    counts = load.counts
    if counts.lost_connections:
        fail(f"{counts.lost_connections} connections were lost", Exit.FAILED)
    if counts.refused:
        fail(f"the broker refused {counts.refused} publishes", Exit.FAILED)


async def _run(endpoint: Endpoint, plan: LoadPlan, *, live: bool) -> LoadRun:
    load = LoadRun(endpoint, plan)
    if not live:
        await load.run(lambda _load: None)
        return load
    errors = Console(stderr=True)
    with Live(console=errors, transient=True, auto_refresh=False) as display:
        await load.run(lambda now: display.update(_table(now), refresh=True))
    return load


def _as_object(load: LoadRun) -> dict[str, Any]:
    counts, elapsed = load.counts, max(load.elapsed, 1e-9)
    done = counts.acknowledged if load.plan.qos else counts.sent
    ordered = sorted(counts.latencies)
    latencies = {f"{name}_ms": round(percentile(ordered, s) * 1000, 3) for name, s in _SHARES}
    return {
        "seconds": round(load.elapsed, 3),
        "sent": counts.sent,
        "acknowledged": counts.acknowledged,
        "received": counts.received,
        "refused": counts.refused,
        "lost_connections": counts.lost_connections,
        "publishes_per_second": round(done / elapsed),
        "deliveries_per_second": round(counts.received / elapsed),
        **(latencies if load.plan.qos else {}),
    }


def _table(load: LoadRun) -> Table:
    plan = load.plan
    title = f"{plan.publishers} → {plan.subscribers}, QoS {plan.qos}, {plan.payload_bytes} B"
    table = Table("", "", title=title, show_header=False)
    for name, value in _as_object(load).items():
        shown = f"{value:,}" if isinstance(value, int) else f"{value:g}"
        table.add_row(name.replace("_", " "), shown)
    return table
