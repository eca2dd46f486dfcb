"""`quantum restore` and `quantum at`: a cluster, or a look, as it stood at a moment."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from clustor.wall_clock import wall_clock_ms
from quantum.archive import PrgId, open_objects
from quantum.archive.backups import read_backup
from quantum.archive.roots import open_roots
from quantum.broker import Broker
from quantum.broker.queues import QueueSection
from quantum.broker.streams.section import StreamSection
from quantum.cli.archive_opening import ring_of
from quantum.cli.backup import AsJson, Keys, Store, first_ring, restored, telling_restore
from quantum.cli.exits import Exit, fail
from quantum.node.archived_log import PointInTime
from quantum.node.archived_state import ArchivedState, replay_archive
from quantum.node.restoring import RestoredCluster, RestorePlan, restore_into, wanted_prgs

_LOOKS = ("sessions", "retained", "queues", "streams", "read")


def restore(
    *,
    source: Store,
    into: Annotated[Path, typer.Option("--into", metavar="DIR", help="An empty directory.")],
    keys: Keys,
    to_index: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TENANT/N=]INDEX",
            help="Stop behind this entry, in every partition or in one; may be repeated.",
        ),
    ] = None,
    to_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop before what is later than this.")
    ] = None,
    backup: Annotated[
        int | None, typer.Option(metavar="MS", help="A backup, as `quantum backup list` says.")
    ] = None,
    tenant: Annotated[
        list[str] | None, typer.Option(help="Only this tenant; may be repeated.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, max=9, help="For how many nodes.")] = 1,
    base_port: Annotated[int, typer.Option(min=1024, max=65_000, help="Of its nodes.")] = 7000,
    as_json: AsJson = False,
) -> None:
    """Make a cluster's directory out of an archive and the keys that sealed it, and nothing else.

    It is a new cluster, with keys and a control plane of its own: it stands beside the one that
    lives. Start it with `quantum up --data DIR`, or `quantum cluster up --data DIR --nodes N`.

    Example: quantum restore --from s3://bucket/archive --keys operator/keys --into back
    --to-time 2026-11-16T09:30

    Exit code 3: DIR is not empty, or the archive does not reach so far. 4: keys. 6: altered.
    """
    if sum(bool(each) for each in (to_index, to_time, backup)) > 1:
        fail("say one place: --to-index, --to-time or --backup", Exit.USAGE)
    index, points = _read_entries(to_index or [])
    plan = RestorePlan(
        PointInTime(index, None if to_time is None else read_moment(to_time)),
        points,
        tenants=frozenset(tenant or ()),
        nodes=nodes,
        base_port=base_port,
    )
    with telling_restore():
        roots = open_roots(source)
        if backup is not None:
            ring = first_ring(roots.tenants, keys)
            plan = plan.at_backup(read_backup(roots.tenants, backup, ring))
        now_ms = wall_clock_ms()
        done = restore_into(roots, lambda prg: ring_of(keys, prg), into, plan, now_ms=now_ms)
    _show(done, into, as_json=as_json)


def _show(done: RestoredCluster, into: Path, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"into": str(into), **restored(done)}))
        return
    places = [(each.prg, each.index, each.digest) for each in done.partitions]
    places += [(each.prg, each.index, each.digest) for each in done.groups]
    for prg, index, digest in places:
        typer.echo(f"{prg}  entry {index}  {digest[:16]}…")
    if not done.groups:
        typer.echo("the archive has no control plane: users, roles and settings are not restored")
    typer.echo(f"restored into {into}")


def at(
    moment: Annotated[str, typer.Argument(metavar="TIME", help="When: 2026-11-16T09:30 (UTC).")],
    what: Annotated[
        str,
        typer.Argument(
            metavar="serve|sessions|retained|queues|streams|read", help="What to look at."
        ),
    ],
    rest: Annotated[
        list[str] | None, typer.Argument(help="For `serve`: options of `quantum up`.")
    ] = None,
    *,
    source: Store,
    keys: Keys,
    tenant: Annotated[str | None, typer.Option(help="Whose; needed for `serve`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look at a broker as it stood at a moment, out of its archive: the living one is not asked.

    `serve` runs a copy of it in a temporary directory, to which stock clients connect; what they
    change there is gone when it ends. The others print what every partition knew: `queues` those
    of sessions and of AMQP, `streams` captures and Kafka's topics, `read` how far each log was.

    Example: quantum at 2026-11-16T09:30 --from s3://bucket/archive --keys keys -- retained

    Example: quantum at 2026-11-16T09:30 --from … --keys keys -- serve --mqtt 127.0.0.1:2883

    Exit code 2: not a time, or nothing to look at. 3: the archive does not reach so far.
    """
    point = PointInTime(time_ms=read_moment(moment))
    if what == "serve":
        raise typer.Exit(_serve(source, keys, point, tenant, rest or []))
    if what not in _LOOKS:
        fail(f"there is nothing like {what}: serve, {', '.join(_LOOKS)}", Exit.USAGE)
    with telling_restore():
        objects = open_objects(source)
        prgs = wanted_prgs(objects, () if tenant is None else (tenant,))
        rows = [
            row
            for prg in prgs
            for row in _rows(replay_archive(objects, prg, ring_of(keys, prg), point), what)
        ]
    for row in rows:
        typer.echo(json.dumps(row) if as_json else "  ".join(map(str, row.values())))


def _read_entries(places: list[str]) -> tuple[int | None, dict[str, int]]:
    """Read where to stop everywhere, and where in single partitions. Ends with one sentence."""
    everywhere: int | None = None
    points: dict[str, int] = {}
    for place in places:
        prg, _, index = place.rpartition("=")
        try:
            if prg:
                points[str(PrgId.parse(prg))] = int(index)
            else:
                everywhere = int(index)
        except ValueError:
            fail(f"not an entry like 4711 or dev/0=4711: {place}", Exit.USAGE)
    return everywhere, points


def read_moment(text: str) -> int:
    """Read a time of day, UTC where it says nothing else; milliseconds. Ends with one sentence."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        fail(f"not a time like 2026-11-16T09:30: {text}", Exit.USAGE)
    zoned = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return int(zoned.timestamp() * 1000)


def _rows(state: ArchivedState, what: str) -> list[dict[str, Any]]:
    broker, prg = state.broker, str(state.prg)
    if what == "retained":
        return [
            {"prg": prg, "topic": topic.decode(errors="replace"), "bytes": len(message.payload)}
            for topic, message in broker.state.retained.items()
        ]
    if what == "read":
        return [{"prg": prg, "index": int(state.index), "digest": state.digest}]
    if what == "streams":
        return [{"prg": prg, **row} for row in _stream_rows(broker)]
    found = []
    for client, session in sorted(broker.state.sessions.items()):
        row: dict[str, Any] = {"prg": prg, "client": client.decode(errors="replace")}
        if what == "sessions":
            filters = [name.decode(errors="replace") for name in session.subscriptions]
            row |= {"connected": session.connected, "subscriptions": filters}
        else:
            row |= {"queued": len(session.outbound)}
        found.append(row)
    if what == "queues":
        found += [{"prg": prg, **row} for row in _queue_rows(broker)]
    return found


def _stream_rows(broker: Broker) -> Iterator[dict[str, Any]]:
    for stream in broker.state.streams:
        name, start, following = stream.spec.name.decode(), stream.start_offset, stream.next_offset
        yield {"stream": name, "partition": stream.partition, "start": start, "next": following}
    for section in broker.state.sections.values():
        if isinstance(section, StreamSection):
            for (number, partition), hosted in sorted(section.state.partitions.items()):
                topic, log = section.state.topics.get(number), hosted.log
                name = "" if topic is None else topic.name
                place = {"start": log.start_offset, "next": log.end_offset}
                yield {"topic": name, "partition": partition, **place}


def _queue_rows(broker: Broker) -> Iterator[dict[str, Any]]:
    for section in broker.state.sections.values():
        if isinstance(section, QueueSection):
            for name, queue in sorted(section.queues.items()):
                said = {"queue": name.decode(errors="replace"), "queued": len(queue.live)}
                yield {**said, "dead": len(queue.dead), "bytes": queue.bytes}


def _serve(source: str, keys: Path, point: PointInTime, tenant: str | None, rest: list[str]) -> int:
    """Run `quantum up` on a copy that is thrown away."""
    with tempfile.TemporaryDirectory(prefix="quantum-at-") as place:
        data = Path(place) / "data"
        plan = RestorePlan(point, tenants=frozenset() if tenant is None else frozenset({tenant}))
        with telling_restore():
            restore_into(
                open_roots(source),
                lambda prg: ring_of(keys, prg),
                data,
                plan,
                now_ms=wall_clock_ms(),
            )
        command = [sys.executable, "-m", "quantum.cli", "up", "--data", str(data), *rest]
        try:
            return subprocess.run(command, check=False).returncode
        except KeyboardInterrupt:
            return 0
