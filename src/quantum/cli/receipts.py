"""`quantum receipts get|keys|verify`: proof that a message was on the disks of a quorum."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
import typer

from clustor.control import KeyPurpose
from clustor.security.receipts import (
    DurabilityReceipt,
    ReceiptVerdict,
    digest_message,
    verify_receipt,
)
from quantum.cli.broker import ADMIN_DEFAULT, Admin, AsJson, Tenant, get_page, tenant_path
from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail

_SIGNER: Final = KeyPurpose.SNAPSHOT_MANIFEST.value
_NODE_KEY: Final = re.compile(r"node-(\d+)(?:-\d+)?")
_RECEIPT_BYTES_MAX: Final = 1 << 20
_SECONDS: Final = 30.0

app = typer.Typer(
    help="Proof that a message was on the disks of a quorum: get it, verify it.",
    no_args_is_help=True,
)


@app.command()
@speaking
def get(
    message: Annotated[
        str, typer.Argument(metavar="ID", help="As the acknowledgement's `quantum-receipt` said.")
    ],
    admin: Admin = ADMIN_DEFAULT,
    *,
    tenant: Tenant = "",
) -> None:
    """Let every replica sign what its own disk has of a message, and print the receipt.

    A publisher learns the ID by the user property `quantum-receipt` (any value) of an MQTT 5
    PUBLISH at QoS 1: the PUBACK has one of the same name. A replica signs after it has read the
    entry and its ledger from its own disk; who does not sign is named with the reason.

    Example: quantum receipts get 10-52-1f0a33d0c9be7714 > receipt.json

    Exit code 0: there is a receipt. 1: nobody signs. 12: no node answered.
    """
    path = f"{tenant_path(admin, tenant)}/receipts/{quote(message, safe='')}"
    found = get_page(admin, path, seconds=_SECONDS)
    typer.echo(json.dumps(found, indent=2))


@app.command()
@speaking
def keys(admin: Admin = ADMIN_DEFAULT) -> None:
    """Print the nodes' public keys: what a receipt is verified with. Keep them elsewhere.

    Example: quantum receipts keys > nodes.json
    """
    found = get_page(admin, "/v1/keys")["keys"]
    typer.echo(json.dumps({"keys": [each for each in found if each["purpose"] == _SIGNER]}))


@app.command()
def verify(
    receipt: Annotated[
        Path, typer.Argument(metavar="FILE", help="What `quantum receipts get` printed; -: stdin.")
    ],
    keys_file: Annotated[
        Path, typer.Option("--keys", metavar="FILE", help="What `quantum receipts keys` printed.")
    ],
    *,
    topic: Annotated[str | None, typer.Option(help="The message's topic, to compare it.")] = None,
    payload: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The message's payload, to compare it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify a receipt without any node: a quorum of replicas signed that they had the entry.

    With --topic and --payload it must be about that very message.

    Example: quantum receipts verify receipt.json --keys nodes.json --topic lamp/7 --payload on.bin

    Exit code 0: it is proven. 1: it is not, and each fault is named. 3: a file is not there.
    """
    if (topic is None) != (payload is None):
        fail("say both --topic and --payload, or neither", Exit.USAGE)
    digest = None
    if topic is not None and payload is not None:
        digest = digest_message(topic.encode(), _read(payload))
    found, trusted = _decode(_read(receipt)), _trusted(_read(keys_file))
    verdict = verify_receipt(found, trusted, digest)
    if as_json:
        typer.echo(json.dumps(_facts(found, verdict)))
    else:
        for line in _lines(found, verdict):
            typer.echo(line)
    raise typer.Exit(0 if verdict.is_proven else Exit.FAILED)


def _read(path: Path) -> bytes:
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read(_RECEIPT_BYTES_MAX)
        return path.read_bytes()
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}", Exit.NOT_FOUND)


def _decode(data: bytes) -> DurabilityReceipt:
    try:
        return msgspec.json.decode(data, type=DurabilityReceipt, strict=False)
    except msgspec.DecodeError as error:
        fail(f"this is no receipt: {error}", Exit.FAILED)


def _trusted(data: bytes) -> Mapping[str, int]:
    """Read public keys with the nodes that they belong to."""
    try:
        listed: Iterable[dict[str, Any]] = json.loads(data)["keys"]
        named = [(each["public_key"], _NODE_KEY.fullmatch(each["key_id"])) for each in listed]
    except (ValueError, KeyError, TypeError):
        fail("this is no list of keys: `quantum receipts keys` prints one", Exit.FAILED)
    return {_hex(key): int(found[1]) for key, found in named if found is not None}


def _hex(public_key: str) -> str:
    """Return a key as receipts spell it; the API spells bytes in base64."""
    if re.fullmatch(r"[0-9a-f]{64}", public_key):
        return public_key
    return msgspec.convert(public_key, type=bytes).hex()


def _facts(receipt: DurabilityReceipt, verdict: ReceiptVerdict) -> dict[str, object]:
    return {
        "proven": verdict.is_proven,
        "id": receipt.id,
        "signers": verdict.signers,
        "voters": verdict.voters,
        "faults": verdict.faults,
        "missing": receipt.missing,
    }


def _lines(receipt: DurabilityReceipt, verdict: ReceiptVerdict) -> Iterable[str]:
    signers = ", ".join(map(str, verdict.signers)) or "none"
    if verdict.is_proven:
        said = receipt.statements[0].statement
        yield (
            f"proven: entry {said.index} of term {said.term} in group {said.group} was on the "
            f"disks of the nodes {signers}, of the voters {', '.join(map(str, verdict.voters))}"
        )
    else:
        yield f"not proven: receipt {receipt.id}, good signatures of the nodes {signers}"
    for fault in verdict.faults:
        yield f"  {fault}"
    for node, why in receipt.missing.items():
        yield f"  node {node} did not sign: {why}"
