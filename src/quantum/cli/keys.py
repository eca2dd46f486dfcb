"""`quantum keys`: which keys a cluster's nodes have, and a new one for all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from clustor.log.errors import KeyUnavailable, LogError
from clustor.runtime.audit.keys import read_audit_keys, rotate_audit_key
from clustor.runtime.audit.record_once import command_event, record_now
from clustor.runtime.cluster_file import CLUSTER_FILE, read_cluster_file
from clustor.runtime.data_directory import STATE_DIRECTORY
from clustor.runtime.development import node_directory
from clustor.runtime.errors import NodeError
from clustor.runtime.keys.epochs_in_use import epochs_in_use
from clustor.runtime.keys.holds import hold_keys, read_holds, release_keys
from clustor.runtime.keys.lifecycle import wish_for
from clustor.runtime.keys.operator_keys import read_office
from clustor.runtime.keys.rotation import REGISTRY_FILE, rotate_everywhere
from clustor.runtime.keys.signers import REGISTRY_FILE as SIGNERS_FILE
from clustor.runtime.keys.store import KEYS_DIRECTORY
from clustor.security import (
    KEY_RULES,
    InUse,
    KeyEntry,
    KeyRegistry,
    KeyState,
    KeyUse,
    SecurityError,
    decode_registry,
)
from clustor.security.key_registry import DAY_MS
from clustor.security.signer_rotation import OFFICE_USES, SIGNER_USES
from clustor.wall_clock import wall_clock_ms
from quantum.cli.admin_asking import ADMIN_DEFAULT, Admin
from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, exit_of, fail
from quantum.cli.keys_office import (
    Content,
    rotate_office,
    sign_content,
    sign_release,
    tend_office,
)
from quantum.cli.node_exits import exit_of_node

app = typer.Typer(help="Keys: which there are, and new ones.", no_args_is_help=True)

Data = Annotated[Path, typer.Option("--data", help="The cluster's directory.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
@speaking
def tend(
    data: Data = Path("var"), *, admin: Admin = ADMIN_DEFAULT, as_json: AsJson = False
) -> None:
    """Do what is due for release keys and break-glass authorities: give it once a day.

    New keys are registered before they sign, old ones end after their overlap and are destroyed.
    Exit code 3: no cluster. 4: keys. 12: no node answered.
    """
    with _reported():
        done = tend_office(data, admin)
    if as_json:
        typer.echo(json.dumps(done))
        return
    for step in done:
        typer.echo("  ".join(str(value) for value in step.values()))
    if not done:
        typer.echo("nothing is due")


@app.command()
def sign(
    content: Annotated[Content, typer.Argument(help="What the file holds.")],
    file: Annotated[Path, typer.Argument(help="The content as JSON, without its signature.")],
    data: Data = Path("var"),
) -> None:
    """Sign an override or a feature manifest with the CPReleaseKey, for `--signature @FILE`.

    Exit code 2: not such a content. 3: no cluster. 4: no key.
    """
    with _reported():
        signed = sign_content(data, content, file)
    typer.echo(json.dumps(signed))


@app.command("sign-release")
def sign_files(data: Data = Path("var"), *, as_json: AsJson = False) -> None:
    """Sign the files that this command runs from with the ReleaseAutomationKey.

    From then on each node of the cluster starts from these very files, or does not start. Give it
    again after every upgrade, before the nodes are started. Exit code 3: no cluster. 4: no key.
    """
    with _reported():
        done = sign_release(data)
    text = "  ".join(f"{name}={value}" for name, value in done.items())
    typer.echo(json.dumps(done) if as_json else text)


@app.command("list")
def list_keys(data: Data = Path("var"), *, as_json: AsJson = False) -> None:
    """List the keys of every node: their epochs, states and times. Exit code 3: no cluster."""
    with _reported():
        stores = {path.name: _rows(path / KEYS_DIRECTORY) for path in _nodes(data)}
        office = read_office(data / KEYS_DIRECTORY).registry.entries
        if office:
            stores[OFFICE] = [_row(each) | {"kept": KEPT_IN} for each in office]
    if as_json:
        typer.echo(json.dumps(stores))
        return
    for name, rows in stores.items():
        for row in rows:
            shown = [f"{key}={value}" for key, value in row.items() if key not in _FIRST and value]
            first = [f"{row[key]!s:<20}" for key in _FIRST]
            typer.echo("  ".join([f"{name:<8}", *first, *shown]).rstrip())


@app.command()
@speaking
def rotate(
    data: Data = Path("var"),
    *,
    use: Annotated[
        KeyUse, typer.Option("--use", help="What the key is for; see `list`.")
    ] = KeyUse.DEK,
    activate_after: Annotated[
        int, typer.Option(min=3, max=3_600, help="Seconds until the nodes encrypt with it.")
    ] = 10,
    admin: Admin = ADMIN_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Give all nodes a new key, while they run.

    A data key is known to every node before any node encrypts with it. The old one decrypts for 48
    hours, and longer while something on disk needs it; then it is zeroized. A new audit key signs
    from the next start of each node on. Snapshot and proof keys are made by the nodes themselves,
    which register them first, and destroy the old ones a day later. Release keys and the authority
    of break-glass certificates stay in this directory; --admin is asked to register them, and
    `tend` ends what takes longer.
    Exit code 1: not now. 3: no cluster. 4: keys. 12: no node answered.
    """
    with _reported():
        nodes = _nodes(data)
        if use is KeyUse.DEK:
            done = _rotate_dek(data, nodes, activate_after * 1_000)
        elif use is KeyUse.AUDIT_LOG:
            done = _rotate_audit(data, nodes)
        elif use in SIGNER_USES:
            done = _wish_signers(use, nodes)
        elif use in OFFICE_USES:
            done = rotate_office(data, use, admin)
            done["signs_from"] = _moment(done["signs_from"])
        else:
            fail(f"{use.value} is not rotated by a cluster's operator", Exit.USAGE)
        record_now(data, [command_event("KeyRotated", "Done", use.value, _texts(done))])
    text = "  ".join(f"{name}={value}" for name, value in done.items())
    typer.echo(json.dumps(done) if as_json else text)


@app.command()
def release(
    name: Annotated[str, typer.Argument(help="Who holds the keys: see `list`.")],
    data: Data = Path("var"),
) -> None:
    """Let old keys be zeroized although NAME once needed them.

    What it sealed or copied (an archive) is unreadable afterwards, unless its keys are kept
    elsewhere. It is asked for again where it is still in use. Exit code 3: nobody holds so.
    """
    with _reported():
        released = [release_keys(node / KEYS_DIRECTORY, name) for node in _nodes(data)]
        if not any(released):
            fail(f"no node's keys are held by {name}", Exit.NOT_FOUND)
        record_now(data, [command_event("KeysReleased", "Done", name)])
    typer.echo(f"released on {sum(released)} nodes")


_AUDIT_PERIOD_MS = KEY_RULES[KeyUse.AUDIT_LOG].period_ms or 0
_FIRST = ("use", "epoch", "state")
OFFICE = "office"
"""Where `list` shows the keys that no node has."""
KEPT_IN = "files, no HSM"
"""What stands in for the hardware that §12.4 asks for; see `clustor.security.key_device`."""


def _rotate_dek(data: Path, nodes: list[Path], after_ms: int) -> dict[str, Any]:
    def in_use() -> InUse:
        return {epoch: files for node in nodes for epoch, files in _used(node).items()}

    stores = [node / KEYS_DIRECTORY for node in nodes]
    for holder in {name for store in stores for name in read_holds(store)}:
        hold_keys(data / KEYS_DIRECTORY, holder)
    epoch, at_ms = rotate_everywhere(data / KEYS_DIRECTORY, stores, in_use, after_ms=after_ms)
    return {"use": KeyUse.DEK.value, "epoch": epoch, "encrypts_from": _moment(at_ms)}


def _rotate_audit(data: Path, nodes: list[Path]) -> dict[str, Any]:
    for directory in (data, *nodes):
        rotate_audit_key(directory / KEYS_DIRECTORY, wall_clock_ms())
    return {"use": KeyUse.AUDIT_LOG.value, "stores": len(nodes) + 1}


def _wish_signers(use: KeyUse, nodes: list[Path]) -> dict[str, Any]:
    """Ask every node for a new key of its own; running nodes see it within a second."""
    for directory in nodes:
        wish_for(directory / KEYS_DIRECTORY, use)
    return {"use": use.value, "asked": len(nodes)}


def _used(node: Path) -> InUse:
    return epochs_in_use(node / STATE_DIRECTORY)


def _nodes(data: Path) -> list[Path]:
    cluster = read_cluster_file(data / CLUSTER_FILE)
    return [node_directory(data, entry.id) for entry in cluster.nodes]


def _rows(keys: Path) -> list[dict[str, Any]]:
    rows = [_row(entry) for entry in _registry(keys).entries]
    holds = [
        {"use": "(hold)", "epoch": "all", "state": name, "since": _moment(since)}
        for name, since in read_holds(keys).items()
    ]
    return rows + _audit_rows(keys) + holds


def _row(entry: KeyEntry) -> dict[str, Any]:
    lives = entry.state is not KeyState.ZEROIZED
    return {
        "use": entry.use.value,
        "epoch": entry.epoch,
        "state": entry.state.value,
        "owner": entry.owner,
        "age_days": _days(wall_clock_ms() - entry.created_at_ms) if lives else None,
        "due": _moment(entry.due_at_ms),
        "activated": _moment(entry.activated_at_ms or entry.activates_at_ms),
        "decrypts_until": _moment(entry.ends_at_ms),
        "zeroized": _moment(entry.zeroized_at_ms),
        "zeroization_digest": entry.zeroization_digest,
    }


def _registry(keys: Path) -> KeyRegistry:
    """Read the registries of data keys and of signing keys as one."""
    entries = [*_entries(keys / REGISTRY_FILE), *_entries(keys / SIGNERS_FILE)]
    return KeyRegistry(entries=tuple(entries))


def _entries(path: Path) -> tuple[KeyEntry, ...]:
    return decode_registry(path.read_bytes()).entries if path.exists() else ()


def _audit_rows(keys: Path) -> list[dict[str, Any]]:
    path = keys / "audit-keys.json"
    return [
        {
            "use": KeyUse.AUDIT_LOG.value,
            "epoch": number,
            "state": "Active" if entry.retires_at_ms is None else "Overlap",
            "owner": "node",
            "activated": _moment(entry.activates_at_ms),
            "age_days": _days(wall_clock_ms() - entry.activates_at_ms),
            "due": _moment(entry.activates_at_ms + _AUDIT_PERIOD_MS)
            if entry.retires_at_ms is None
            else None,
            "trusted_until": _moment(entry.retires_at_ms),
            "public_key": entry.public_key,
        }
        for number, entry in enumerate(read_audit_keys(path) if path.exists() else (), 1)
    ]


def _days(millis: int) -> str:
    return f"{max(0, millis) / DAY_MS:.1f}"


def _moment(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


def _texts(facts: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in facts.items()}


@contextmanager
def _reported() -> Iterator[None]:
    """Turn what went wrong into one sentence and an exit code."""
    try:
        yield
    except SecurityError as error:
        fail(str(error), Exit.FAILED)
    except KeyUnavailable as error:
        fail(str(error), Exit.WRONG_KEY)
    except LogError as error:
        fail(str(error), exit_of(error))
    except NodeError as error:
        fail(str(error), exit_of_node(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", Exit.FAILED)
