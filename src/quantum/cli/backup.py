"""`quantum backup`: points that an archive can be gone back to; `quantum drill`: going back."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from clustor.log.errors import LogError
from clustor.log.keys import KeyRing
from clustor.runtime.errors import NodeError
from clustor.snapshot.errors import SnapshotFailure
from clustor.wall_clock import wall_clock_ms
from quantum.archive import ArchiveError, Objects, PrgId, open_objects, verify_prg
from quantum.archive.backups import (
    Backup,
    find_backups,
    mark_verified,
    read_backup,
    record_drill,
)
from quantum.archive.roots import ArchiveRoots, open_roots
from quantum.cli.admin_client import AdminUnreachable, fail_unreachable, fetch, parse_address
from quantum.cli.archive_opening import in_one_sentence, ring_of
from quantum.cli.credentials import speaking
from quantum.cli.doctor_checks import DRILL_DAYS_MAX
from quantum.cli.exits import Exit, exit_of, fail
from quantum.cli.node_exits import exit_of_node
from quantum.node.archived_groups import archived_groups
from quantum.node.backup_points import KeysOf, differing, keep_backup, take_backup
from quantum.node.restoring import RestoredCluster, RestorePlan, restore_into, wanted_prgs

app = typer.Typer(
    help="Points in time that a cluster's archive can be gone back to.", no_args_is_help=True
)
drill_app = typer.Typer(help="Practise what must work one day.", no_args_is_help=True)

_LOOK_SECONDS: Final = 0.5

Keys = Annotated[
    Path, typer.Option("--keys", metavar="DIR", help="A directory with the key ring and its key.")
]
Store = Annotated[str, typer.Option("--from", metavar="URL", help="The archive.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
@speaking
def create(
    *,
    admin: Annotated[
        list[str],
        typer.Option(
            "--cluster", metavar="HOST:PORT", help="Every node's admin address; may be repeated."
        ),
    ],
    to: Annotated[str, typer.Option("--to", metavar="URL", help="The cluster's archive.")],
    keys: Keys,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for the archive to follow.")] = 300,
    as_json: AsJson = False,
) -> None:
    """Wait until the archive has all that is committed now, read it back, and write a point down.

    Nodes archive all the time, to the URL that they were given (`archive` in quantum.toml); this
    makes a place of it that can be named by the moment at which this began. What is written down
    is what the log gives when it is applied again from the store alone; then it is read back. A
    node does the same by itself every `backup_interval_seconds`.

    Exit code 1: the archiver has stopped, or archives elsewhere. 4: keys. 6: it differs when it
    is read back. 12: not in time.
    """
    began_ms = wall_clock_ms()
    wanted = _committed(admin, to)
    deadline = time.monotonic() + timeout
    while behind := [prg for prg, index in wanted.items() if _archived(admin, to)[prg] < index]:
        if time.monotonic() > deadline:
            fail(f"not in time: the archive lacks entries of {', '.join(behind)}", Exit.UNREACHABLE)
        time.sleep(_LOOK_SECONDS)
    with _telling():
        roots, keys_of = open_roots(to), _rings(keys)
        taken = take_backup(roots, keys_of, began_ms)
        keep_backup(roots, taken)
        kept = read_backup(roots.tenants, began_ms, taken.keys)
        wrong = differing(roots, keys_of, kept)
        if not wrong:
            mark_verified(roots.tenants, began_ms, wall_clock_ms())
    _show(taken.backup, as_json=as_json)
    for each in taken.without_streams:
        typer.echo(f"{each} holds records of streams from before its archive began", err=True)
    if wrong:
        fail(f"the backup differs when it is read back: {wrong[0]}", Exit.QUARANTINED)


@app.command("list")
def list_command(*, source: Store, as_json: AsJson = False) -> None:
    """List the backups of an archive, the oldest first; `verified` were read back once."""
    with _telling():
        found = [each for each in find_backups(open_objects(source)).backups if each.is_recorded]
    for each in found:
        shown = {
            "made_ms": each.made_ms,
            "made": moment(each.made_ms),
            "verified": each.is_verified,
            "scheduled": each.is_scheduled,
        }
        words = [word for word in ("verified", "scheduled") if shown[word]]
        line = "  ".join((str(each.made_ms), str(shown["made"]), *words))
        typer.echo(json.dumps(shown) if as_json else line)
    if not found:
        fail(f"there is no backup at {source}", Exit.NOT_FOUND)


@app.command()
def verify(
    *,
    source: Store,
    keys: Keys,
    backup: Annotated[
        int | None, typer.Option(metavar="MS", help="Which, as `list` says; default: the newest.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read everything that a backup needs, authenticate it, and apply it again.

    Exit code 0: every digest is what was written down. 6: one is not, or something was altered.
    """
    with _telling():
        roots = open_roots(source)
        found = read_backup(roots.tenants, backup, first_ring(roots.tenants, keys))
        wrong = [
            *_altered(roots.tenants, keys, wanted_prgs(roots.tenants, ())),
            *_altered(roots.groups, keys, archived_groups(roots.groups)),
            *differing(roots, _rings(keys), found),
        ]
    report = {"made_ms": found.made_ms, "partitions": len(found.points), "wrong": wrong}
    typer.echo(json.dumps(report) if as_json else _verdict(report))
    raise typer.Exit(Exit.QUARANTINED if wrong else 0)


@drill_app.command("restore")
def drill_restore(
    *,
    source: Store,
    keys: Keys,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to keep a copy of the report.")
    ] = None,
    overdue: Annotated[
        bool, typer.Option("--overdue", help="Only say whether a drill is overdue.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Restore the newest backup into a temporary directory, compare every digest, and report.

    When it succeeds, that is written down beside the backups, where nodes find it: `quantum doctor`
    says when it did not for 90 days, and `--overdue` fails then. `--report FILE` keeps a copy.

    Exit code 0: the restored cluster is what was backed up. 1: a drill is overdue. 3: there is no
    backup, or the archive lacks what streams of it hold. 4: keys. 6: it differs. 12: the store does
    not answer.
    """
    if overdue:
        _tell_overdue(source)
    began = time.monotonic()
    with _telling(), tempfile.TemporaryDirectory(prefix="quantum-drill-") as place:
        roots = open_roots(source)
        found = read_backup(roots.tenants, None, first_ring(roots.tenants, keys))
        wrong = _restored_differs(roots, keys, found, Path(place))
    done = {
        "made_ms": found.made_ms,
        "drilled_ms": wall_clock_ms(),
        "seconds": round(time.monotonic() - began, 1),
        "partitions": len(found.points),
        "wrong": wrong,
    }
    if not wrong:
        _write_down(roots.tenants, done, report)
    typer.echo(json.dumps(done) if as_json else _verdict(done))
    raise typer.Exit(Exit.QUARANTINED if wrong else 0)


def _restored_differs(roots: ArchiveRoots, keys: Path, backup: Backup, place: Path) -> list[str]:
    """Restore every partition to its entry, on disk, and read it back from there."""
    from quantum.node.replaying import replay_directory

    into = place / "data"
    plan = RestorePlan().at_backup(backup)
    done = restore_into(roots, _rings(keys), into, plan, now_ms=wall_clock_ms())
    found = {
        str(PrgId(done.lives[each.tenant], each.partition)): each.digest
        for each in replay_directory(into, None, lambda _: None)
    }
    wrong = [
        point.prg
        for point in backup.points
        if PrgId.parse(point.prg).tenant in done.lives.values()
        and found.get(point.prg) != point.digest
    ]
    return wrong + [each.prg for each in backup.group_points if each not in done.groups]


def moment(made_ms: int) -> str:
    """Return a time as people write it."""
    return f"{datetime.fromtimestamp(made_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _write_down(objects: Objects, done: dict[str, Any], report: Path | None) -> None:
    """Say when it was practised, where nodes look; who may only read the store is told so."""
    try:
        record_drill(objects, done["drilled_ms"], done)
    except ArchiveError as error:
        typer.echo(
            f"the drill succeeded, and the store does not take its record: {error}", err=True
        )
    if report is not None:
        try:
            report.write_text(json.dumps(done) + "\n")
        except OSError as error:
            fail(f"the drill succeeded, and cannot be reported: {error}", Exit.FAILED)


def _tell_overdue(source: str) -> None:
    with _telling():
        last = find_backups(open_objects(source)).drilled_ms
    if last is None:
        fail(f"no restore of {source} was ever practised", Exit.FAILED)
    days = (wall_clock_ms() - last) / 86_400_000
    typer.echo(f"the last drill was {days:.0f} days ago")
    raise typer.Exit(Exit.FAILED if days > DRILL_DAYS_MAX else 0)


def _rings(keys: Path) -> KeysOf:
    return lambda prg: ring_of(keys, prg)


def first_ring(objects: Objects, keys: Path) -> KeyRing:
    return ring_of(keys, wanted_prgs(objects, ())[0])


def _altered(objects: Objects, keys: Path, prgs: list[PrgId]) -> list[str]:
    return [
        f"{prg}: something was altered or is missing"
        for prg in prgs
        if not verify_prg(objects, prg, ring_of(keys, prg)).sound
    ]


def _statuses(admin: list[str], to: str) -> list[dict[str, Any]]:
    found = []
    for each in admin:
        try:
            code, answer = fetch(parse_address(each), "/v1/archive")
        except ValueError as error:
            fail(str(error), Exit.USAGE)
        except AdminUnreachable as error:
            fail_unreachable(error)
        if code != 200:
            fail(f"{each}: {answer.get('message', code)}", Exit.FAILED)
        if str(answer["archive"]).rstrip("/") != to.rstrip("/"):
            fail(f"{each} archives to {answer['archive']}, not to {to}", Exit.FAILED)
        found.append(answer)
    return found


def _rows(answers: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for answer in answers:
        for kind in ("partitions", "groups"):
            for row in answer.get(kind, ()):
                yield f"{kind}:{row['prg']}", row


def _committed(admin: list[str], to: str) -> dict[str, int]:
    """Return how far everything is committed now, as who knows most says it."""
    found: dict[str, int] = {}
    for name, row in _rows(_statuses(admin, to)):
        if row["state"] == "stopped":
            fail(f"{row['prg']}: {row['reason']}", Exit.FAILED)
        found[name] = max(found.get(name, 0), int(row["committed_index"]))
    return found


def _archived(admin: list[str], to: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, row in _rows(_statuses(admin, to)):
        found[name] = max(found.get(name, 0), int(row["archived_index"]))
    return found


def _show(backup: Backup, *, as_json: bool) -> None:
    if as_json:
        points = [{"prg": p.prg, "index": p.index, "digest": p.digest} for p in backup.points]
        typer.echo(json.dumps({"made_ms": backup.made_ms, "points": points}))
        return
    typer.echo(f"backup {backup.made_ms} ({moment(backup.made_ms)})")
    for point in backup.points:
        typer.echo(f"  {point.prg}  entry {point.index}  {point.digest[:16]}…")


def _verdict(report: dict[str, Any]) -> str:
    head = f"backup {report['made_ms']}: {report['partitions']} partitions"
    if report["wrong"]:
        return "\n".join((f"{head}, and these differ:", *(f"  {w}" for w in report["wrong"])))
    return f"{head}, each as it was written down"


@contextmanager
def _telling() -> Iterator[None]:
    """Turn what goes wrong into one sentence and an exit code."""
    try:
        with in_one_sentence():
            yield
    except NodeError as error:
        fail(str(error), exit_of_node(error))
    except SnapshotFailure as error:
        fail(str(error), Exit.QUARANTINED)
    except LogError as error:
        fail(str(error), exit_of(error))


telling_restore = _telling


def restored(done: RestoredCluster) -> dict[str, Any]:
    """Return what was restored, for JSON."""
    return {
        "tenants": list(done.lives),
        "partitions": [asdict(each) for each in done.partitions],
        "groups": [msgspec.to_builtins(each) for each in done.groups],
    }
