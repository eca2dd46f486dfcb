"""Receipts: replicas sign that an entry stands on their own disks, and anybody can check it.

A replica signs what its own log and its own durability ledger say after it has read both, never
what it heard of others. A receipt holds as many such statements as were given; whoever has the
nodes' public keys verifies it without any node: the statements are about one entry, each is signed
by a replica that votes, and those are a quorum of every configuration that any of them named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Meta

RECEIPT_VERSION: Final = 1
_DOMAIN: Final = b"quantum durability receipt v1\0"
"""Before all that is signed here: the same key signs snapshots' manifests."""
_STATEMENTS_MAX: Final = 64

_Number = Annotated[int, Meta(ge=0, le=2**53 - 1)]
_Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_Signature = Annotated[str, Meta(pattern="^[0-9a-f]{128}$")]
_Members = Annotated[tuple[_Number, ...], Meta(max_length=64)]


class DurabilityStatement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one replica found on its own disk."""

    cluster: Annotated[str, Meta(max_length=256)]
    group: _Number
    term: _Number
    index: _Number
    entry_sha256: _Digest
    """Of the entry's payload, as it was read from the log."""
    message_sha256: _Digest
    """Of the message in it (`digest_message`)."""
    durable_index: _Number
    """How far the ledger on disk proves the log; at least `index`."""
    mode: Annotated[str, Meta(max_length=32)]
    voters: _Members
    outgoing: _Members
    """Voters of the configuration that is being left; empty where none is."""
    node: _Number
    at_ms: _Number


class SignedStatement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    statement: DurabilityStatement
    public_key: _Digest
    signature: _Signature


class DurabilityReceipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What people keep. `missing` names nodes that signed nothing, and why."""

    version: _Number = RECEIPT_VERSION
    id: Annotated[str, Meta(max_length=128)]
    tenant: Annotated[str, Meta(max_length=256)]
    partition: _Number
    statements: Annotated[list[SignedStatement], Meta(max_length=_STATEMENTS_MAX)]
    missing: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class ReceiptVerdict:
    """Whether a receipt proves what it says; `faults` has a sentence for each thing wrong."""

    signers: tuple[int, ...]
    voters: tuple[int, ...]
    faults: tuple[str, ...]

    @property
    def is_proven(self) -> bool:
        return not self.faults


def digest_message(topic: bytes, payload: bytes) -> str:
    """Digest what a publisher said, so that whoever has the message can compare it."""
    return hashlib.sha256(len(topic).to_bytes(4, "big") + topic + payload).hexdigest()


def sign_statement(statement: DurabilityStatement, key: Ed25519PrivateKey) -> SignedStatement:
    return SignedStatement(
        statement=statement,
        public_key=key.public_key().public_bytes_raw().hex(),
        signature=key.sign(_signed_bytes(statement)).hex(),
    )


def verify_receipt(
    receipt: DurabilityReceipt, trusted: Mapping[str, int], message_sha256: str | None = None
) -> ReceiptVerdict:
    """Judge a receipt by the nodes' public keys (as hex, with the node that each belongs to).

    With `message_sha256` it must be about that very message.
    """
    faults: list[str] = []
    statements = [each.statement for each in receipt.statements]
    if receipt.version != RECEIPT_VERSION:
        faults.append(f"a receipt of version {receipt.version}; this build knows {RECEIPT_VERSION}")
    if not statements:
        faults.append("nobody signed it")
    faults += _differences(statements)
    if statements and message_sha256 not in (None, statements[0].message_sha256):
        faults.append("it is about another message: topic or payload differ")
    if statements and receipt.id != receipt_id(
        statements[0].group, statements[0].index, statements[0].message_sha256
    ):
        faults.append("its id is not that of the entry which was signed")
    signers: set[int] = set()
    for each in receipt.statements:
        fault = _fault_of(each, trusted)
        if fault:
            faults.append(f"node {each.statement.node}: {fault}")
        else:
            signers.add(each.statement.node)
    voters = {member for each in statements for member in (*each.voters, *each.outgoing)}
    for members in {half for each in statements for half in (each.voters, each.outgoing) if half}:
        there = len(signers & set(members))
        needed = len(set(members)) // 2 + 1
        if there < needed:
            faults.append(
                f"{there} of {len(set(members))} voters signed, and {needed} are a quorum"
            )
    return ReceiptVerdict(tuple(sorted(signers)), tuple(sorted(voters)), tuple(faults))


def receipt_id(group: int, index: int, message_sha256: str) -> str:
    """Name a message in the log: its group, its entry, and which one of it."""
    return f"{group}-{index}-{message_sha256[:16]}"


def _differences(statements: list[DurabilityStatement]) -> list[str]:
    """Say where statements are not about one entry."""
    named = ("cluster", "group", "term", "index", "entry_sha256", "message_sha256")
    return [
        f"the statements differ in {name}"
        for name in named
        if len({getattr(each, name) for each in statements}) > 1
    ]


def _fault_of(signed: SignedStatement, trusted: Mapping[str, int]) -> str:
    """Say what is wrong with one statement; empty: nothing."""
    statement = signed.statement
    owner = trusted.get(signed.public_key)
    if owner is None:
        return "its key is not among the trusted ones"
    if owner != statement.node:
        return f"its key belongs to node {owner}"
    if statement.durable_index < statement.index:
        return "its ledger does not reach the entry"
    if statement.node not in (*statement.voters, *statement.outgoing):
        return "it does not vote"
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signed.public_key))
        key.verify(bytes.fromhex(signed.signature), _signed_bytes(statement))
    except (InvalidSignature, ValueError):
        return "the signature does not fit"
    return ""


def _signed_bytes(statement: DurabilityStatement) -> bytes:
    return _DOMAIN + msgspec.json.encode(statement)
