"""`quantum log`: verify, dump and measure a log without its node."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from rich.table import Table

from clustor.log.errors import LogError
from clustor.log.image import LogImage
from clustor.log.keys import KeyRing
from clustor.log.metadata import METADATA_FILE
from clustor.log.reader import LogReader
from clustor.log.segment import WAL_DIRECTORY, segment_file, segment_seq_of
from clustor.log.types import LogState
from clustor.runtime.disk import DirectoryStorage
from clustor.runtime.errors import NodeError
from clustor.runtime.keys.store import find_keyring, load_keyring
from clustor.snapshot.errors import SnapshotFailure
from quantum.cli.consoles import errors
from quantum.cli.exits import Exit, exit_of, exit_of_state, fail

app = typer.Typer(
    help="Look into a log on disk: verify it, print its entries, measure it. Reads only.",
    no_args_is_help=True,
)

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="A node's data directory, or a partition below it.")
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        help="The key that opens the key ring, as 64 hex digits; default: keys/kek.key beside it."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one line per partition.")]


@app.command()
def verify(directory: Directory, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Authenticate every byte of every log below DIR.

    Exit code 0 means: everything the durability ledger proves is there, and is what was written.
    3: no log, or a file is gone. 4: wrong key. 5: a checksum failed (NeedsRepair). 6: forged,
    damaged or lost (Quarantine). 7: written by a later release.
    """
    worst = 0
    for partition, code, verdict in _verdicts(directory, key_file):
        worst = max(worst, code)
        _print_verdict(partition, verdict, as_json)
    raise typer.Exit(worst)


def _verdicts(directory: Path, key_file: Path | None) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    partitions = _partitions(directory)
    keys = _keys(directory, key_file)
    for partition in partitions:
        try:
            with _opened(partition, keys) as reader:
                code = exit_of_state(reader.image.state)
                yield partition, code, _verdict(reader)
        except LogError as error:
            yield partition, exit_of(error), {"state": "Unreadable", "problem": str(error)}


def _verdict(reader: LogReader) -> dict[str, Any]:
    image = reader.image
    return {
        "state": str(image.state),
        "problem": str(image.problem) if image.problem else None,
        "first_index": image.entries.base_index + 1,
        "last_index": image.entries.last_index,
        "proven_index": reader.proven_index,
        "segments": len(image.segments),
    }


def _print_verdict(partition: Path, verdict: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"partition": str(partition), **verdict}))
        return
    if verdict["problem"]:
        typer.echo(f"{partition}: {verdict['state']}: {verdict['problem']}")
        return
    typer.echo(
        f"{partition}: {verdict['state']}: entries {verdict['first_index']} to "
        f"{verdict['last_index']}, proven through {verdict['proven_index']}, "
        f"in {verdict['segments']} segments"
    )


@app.command()
def dump(
    directory: Directory,
    from_index: Annotated[int, typer.Option("--from", help="The first index to print.")] = 1,
    unproven: Annotated[
        bool, typer.Option(help="Also what stands behind the ledger's proof.")
    ] = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the entries of one partition's log, oldest first."""
    partitions = _partitions(directory)
    if len(partitions) > 1:
        names = ", ".join(str(partition) for partition in partitions[:8])
        fail(f"{directory} holds {len(partitions)} logs; name one of {names}", Exit.USAGE)
    try:
        with _opened(partitions[0], _keys(directory, key_file)) as reader:
            for entry in reader.entries(from_index, unproven=unproven):
                if as_json:
                    typer.echo(
                        json.dumps(
                            {
                                "index": entry.index,
                                "term": entry.term,
                                "kind": entry.kind.name,
                                "payload": base64.b64encode(entry.payload).decode(),
                            }
                        )
                    )
                else:
                    typer.echo(
                        f"{entry.index:>10}  term {entry.term}  {entry.kind.name:<21} "
                        f"{len(entry.payload):>7} B  {_preview(entry.payload)}"
                    )
            state = reader.image.state
            if state is not LogState.HEALTHY:
                fail(f"{state}: {reader.image.problem}", Exit(exit_of_state(state)))
    except LogError as error:
        fail(str(error), exit_of(error))


def _preview(payload: bytes) -> str:
    text = payload[:48].decode("utf-8", errors="replace")
    return "".join(char if char.isprintable() else "·" for char in text)


@app.command()
def replay(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory of `quantum up` or of a cluster.")
    ],
    to_index: Annotated[
        int | None, typer.Option("--to", min=0, help="The last index to apply; default: all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Apply every broker partition's log again, and print the digest of the state it gives.

    Replicas of a partition that stand at the same index must have the same digest, and a node
    that runs has it too (`/v1/broker/digests` of its admin port). Exit code 6: two differ.
    """
    from quantum.node.replaying import ReplayedHistory, replay_directory

    def show(found: ReplayedHistory) -> None:
        row = asdict(found)
        if as_json:
            typer.echo(json.dumps(row))
        else:
            typer.echo(
                f"node {found.node}: {found.tenant}/{found.partition} at {found.index}: "
                f"{found.digest} ({found.commands} commands after {found.snapshot_index})"
            )

    try:
        replayed = replay_directory(directory, to_index, show)
    except LogError as error:
        fail(str(error), exit_of(error))
    except (NodeError, SnapshotFailure) as error:
        fail(str(error), Exit.NOT_FOUND)
    if not replayed:
        fail(f"{directory} holds no broker's partitions", Exit.NOT_FOUND)
    digests: dict[tuple[str, int, int], set[str]] = {}
    for each in replayed:
        digests.setdefault((each.tenant, each.partition, each.index), set()).add(each.digest)
    differing = [key for key, found in digests.items() if len(found) > 1]
    if differing:
        tenant, partition, index = differing[0]
        fail(f"replicas of {tenant}/{partition} differ at index {index}", Exit.QUARANTINED)


@app.command()
def stat(directory: Directory, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Measure every log below DIR: segments, bytes, amplification, key epochs, ledger head."""
    partitions = _partitions(directory)
    keys = _keys(directory, key_file)
    worst = 0
    for partition in partitions:
        try:
            with _opened(partition, keys) as reader:
                found = _measures(partition, reader.image)
                worst = max(worst, exit_of_state(reader.image.state))
        except LogError as error:
            errors.print(f"quantum: {partition}: {error}", markup=False, highlight=False)
            worst = max(worst, exit_of(error))
            continue
        if as_json:
            typer.echo(json.dumps(found))
        else:
            Console().print(_table(found))
    raise typer.Exit(worst)


def _measures(partition: Path, image: LogImage) -> dict[str, Any]:
    scanners = [segment.scanner for segment in image.segments if segment.scanner is not None]
    payload_bytes = sum(scanner.payload_bytes for scanner in scanners)
    ledger_bytes = image.ledger.good_bytes
    used = ledger_bytes + sum(scanner.end_offset for scanner in scanners)
    return {
        "partition": str(partition),
        "partition_id": str(image.identity.partition),
        "log_id": image.identity.log_id.hex(),
        "state": str(image.state),
        "first_index": image.entries.base_index + 1,
        "last_index": image.entries.last_index,
        "last_term": image.entries.last_term,
        "payload_bytes": payload_bytes,
        "used_bytes": used,
        "amplification": round(used / payload_bytes, 4) if payload_bytes else None,
        "dek_epochs": sorted({scanner.header.dek_epoch for scanner in scanners}),
        "mac_epochs": sorted({scanner.header.mac_epoch for scanner in scanners}),
        "ledger": {
            "records": len(image.ledger.records),
            "bytes": ledger_bytes,
            "proven_index": image.facts.proven_index,
            "durability_mode_epoch": image.facts.durability_mode_epoch,
        },
        "segments": [
            {
                "segment_seq": segment.segment_seq,
                "closed": segment.closed,
                "entries": segment.scanner.tally.entry_count if segment.scanner else 0,
                "bytes": segment.size_bytes,
                "dek_epoch": segment.scanner.header.dek_epoch if segment.scanner else None,
            }
            for segment in image.segments
        ],
    }


def _table(found: dict[str, Any]) -> Table:
    table = Table(
        title=f"{found['partition']}: {found['state']}",
        caption=(
            f"entries {found['first_index']} to {found['last_index']}, proven through "
            f"{found['ledger']['proven_index']}; {found['used_bytes']:,} bytes for "
            f"{found['payload_bytes']:,} of payload"
            + (f" ({found['amplification']:.3f} x)" if found["amplification"] else "")
        ),
    )
    for heading in ("segment", "state", "entries", "bytes", "key epoch"):
        table.add_column(heading, justify="left" if heading == "state" else "right")
    for segment in found["segments"]:
        table.add_row(
            str(segment["segment_seq"]),
            "closed" if segment["closed"] else "open",
            f"{segment['entries']:,}",
            f"{segment['bytes']:,}",
            str(segment["dek_epoch"]),
        )
    return table


def _keys(directory: Path, key_file: Path | None) -> KeyRing:
    try:
        found = find_keyring(directory)
        if not found.is_relative_to(directory.resolve()):
            typer.echo(f"quantum: keys are taken from {found}, the nearest above", err=True)
        return load_keyring(found, key_file)
    except LogError as error:
        fail(str(error), exit_of(error))


def _partitions(directory: Path) -> list[Path]:
    """Find the logs at or below DIR; a directory with a WAL and no metadata counts as one."""
    if not directory.is_dir():
        fail(f"{directory} is not a directory", Exit.NOT_FOUND)
    if (directory / METADATA_FILE).exists() or (directory / WAL_DIRECTORY).is_dir():
        return [directory]
    found = {path.parent for path in directory.rglob(METADATA_FILE)}
    found |= {path.parent for path in directory.rglob(WAL_DIRECTORY) if path.is_dir()}
    if not found:
        fail(f"there is no log in {directory} or below it", Exit.NOT_FOUND)
    return sorted(found)


@contextmanager
def _opened(partition: Path, keys: KeyRing) -> Iterator[LogReader]:
    """Read a log, with a bar on the terminal once that takes more than a moment."""
    storage = DirectoryStorage(partition)
    try:
        with _progress(storage, partition.name) as advance:
            reader = LogReader.open(storage, keys, advance)
        yield reader
    finally:
        storage.close()


@contextmanager
def _progress(storage: DirectoryStorage, name: str) -> Iterator[Callable[[int], None]]:
    if not errors.is_terminal:
        yield lambda _: None
        return
    sizes = [storage.size(segment_file(seq)) for seq in _segment_seqs(storage)]
    columns = (f"reading {name}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task(name, total=sum(sizes) or None)
        yield lambda run_bytes: progress.advance(task, run_bytes)


def _segment_seqs(storage: DirectoryStorage) -> list[int]:

    seqs = (segment_seq_of(name) for name in storage.names(WAL_DIRECTORY))
    return [seq for seq in seqs if seq is not None]
