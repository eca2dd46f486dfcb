"""`quantum archive retain`: let go of what nobody needs any more, after showing what that is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from clustor.log.keys import KeyRing
from clustor.wall_clock import wall_clock_ms
from quantum.archive import ArchiveConflict, Listing, Objects, PrgId, open_objects, read_listing
from quantum.archive.backups import OldestNeed, oldest_need
from quantum.archive.retention import Retention, Wanted, drop, plan_retention, sweep
from quantum.cli.archive_opening import AsJson, Url, in_one_sentence, prgs_of, ring_of
from quantum.cli.exits import Exit, fail

_DAY_MS: Final = 86_400_000
_ATTEMPTS: Final = 8
_WRITER: Final = "quantum archive retain"


def retain(  # noqa: PLR0917  # typer
    url: Url,
    keys: Annotated[Path, typer.Option(metavar="DIR", help="A directory with the key ring.")],
    older_than_days: Annotated[
        float | None, typer.Option(min=0, help="Let segments go whose newest message is older.")
    ] = None,
    bytes_max: Annotated[
        int | None, typer.Option(min=0, help="Let the oldest go until a partition is this small.")
    ] = None,
    keep_from: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="Keep what this table still has to read; repeatable."),
    ] = None,
    past_backups: Annotated[
        bool,
        typer.Option(
            "--past-backups", help="Let go of what backups need, too: they are lost with it."
        ),
    ] = False,
    past_streams: Annotated[
        bool,
        typer.Option(
            "--past-streams",
            help="Let go of what streams and queues hold, too: a restore refuses them then.",
        ),
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Do it; without, it is only shown.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the oldest whole segments below the newest snapshot; shown only, unless --delete.

    What a backup needs to be restored stays, unless --past-backups, and what streams and queues
    still hold, unless --past-streams. What goes is written into the chain of records first.

    Exit code 0: done, or nothing to do. 13: archivers were always quicker.
    """
    if older_than_days is None and bytes_max is None:
        fail("say what is too much: --older-than-days, --bytes-max, or both", Exit.USAGE)
    age_ms = None if older_than_days is None else int(older_than_days * _DAY_MS)
    with in_one_sentence():
        objects = open_objects(url)
        for prg in prgs_of(objects, url):
            ring = ring_of(keys, prg)
            for _ in range(_ATTEMPTS):
                listing = read_listing(objects, prg, ring)
                backup = None if past_backups else oldest_need(objects, listing)
                streams = None if past_streams else _of_streams(objects, listing, ring, backup)
                needed = _first(_needed(listing, keep_from or []), backup, streams)
                going = plan_retention(listing, Wanted(age_ms, bytes_max, needed), wall_clock_ms())
                try:
                    left = _carry_out(objects, listing, going, ring) if delete else listing
                except ArchiveConflict:
                    continue
                _say(prg, going, left, as_json=as_json, done=delete)
                break
            else:
                fail(f"{prg}: archivers were always quicker", Exit.CONFLICT)


def _first(table: int | None, backup: OldestNeed | None, streams: int | None) -> int | None:
    needed = (table, None if backup is None else backup.first, streams)
    return min((each for each in needed if each is not None), default=None)


def _carry_out(
    objects: Objects, listing: Listing, going: Retention | None, ring: KeyRing
) -> Listing:
    if going is None:
        sweep(objects, listing)  # what a run before left that was cut short
        return listing
    return drop(objects, listing, going, ring, _WRITER, wall_clock_ms())


def _of_streams(
    objects: Objects, listing: Listing, ring: KeyRing, backup: OldestNeed | None
) -> int | None:
    """Return the first entry with a record that streams hold at the oldest place, or now."""
    from quantum.node.archived_state import needed_for_streams

    if listing.applied_with is None:
        return None
    index = None if backup is None else backup.index
    return needed_for_streams(objects, listing.prg, ring, index) or None


def _needed(listing: Listing, tables: list[str]) -> int | None:
    """Return the first index that a table still has to read, with what it needs to begin there."""
    from quantum.lake.table import StreamName, Table, TableError, open_store

    found: list[int] = []
    for table in tables:
        try:
            state = Table.open(open_store(table)).state
        except TableError as error:
            fail(f"{table}: {error}", Exit.NOT_FOUND)
        stream = StreamName(str(listing.prg))
        following = state.next_offset(stream) or 1
        if state.state_of(stream) is None:  # it begins with a snapshot, and reads on from there
            bases = [row.base_index for row in listing.snapshots if row.base_index < following]
            following = max(bases, default=0) + 1
        found.append(following)
    return min(found, default=None)


def _say(prg: PrgId, going: Retention | None, left: Listing, *, as_json: bool, done: bool) -> None:
    row: dict[str, Any] = {
        "prg": str(prg),
        "through": 0 if going is None else going.through,
        "segments": 0 if going is None else len(going.segments),
        "snapshots": 0 if going is None else len(going.snapshots),
        "bytes": 0 if going is None else going.bytes,
        "deleted": done and going is not None,
        "first": left.first,
        "last": left.last,
    }
    if as_json:
        typer.echo(json.dumps(row))
    elif going is None:
        typer.echo(f"{prg}: nothing goes")
    else:
        verb = "are deleted" if done else "would go; --delete does it"
        typer.echo(
            f"{prg}: {row['segments']} segments and {row['snapshots']} snapshots through index "
            f"{going.through}, {going.bytes:,} bytes, {verb}"
        )
