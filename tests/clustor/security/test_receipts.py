"""A receipt proves a quorum's disks, or says what it lacks: every way to cheat has its fault."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.security.receipts import (
    DurabilityReceipt,
    DurabilityStatement,
    SignedStatement,
    digest_message,
    receipt_id,
    sign_statement,
    verify_receipt,
)

KEYS: Final = {
    node: Ed25519PrivateKey.from_private_bytes(bytes([node]) * 32) for node in range(1, 6)
}
TRUSTED: Final = {key.public_key().public_bytes_raw().hex(): node for node, key in KEYS.items()}
DIGEST: Final = digest_message(b"lamp/7", b"on")
ID: Final = receipt_id(10, 52, DIGEST)


def stated(node: int, **changed: Any) -> DurabilityStatement:
    said = DurabilityStatement(
        cluster="birth",
        group=10,
        term=3,
        index=52,
        entry_sha256="e" * 64,
        message_sha256=DIGEST,
        durable_index=60,
        mode="STRICT",
        voters=(1, 2, 3),
        outgoing=(),
        node=node,
        at_ms=1,
    )
    return msgspec.structs.replace(said, **changed)


def signed(node: int, **changed: Any) -> SignedStatement:
    return sign_statement(stated(node, **changed), KEYS[node])


def receipt(*statements: SignedStatement, **changed: Any) -> DurabilityReceipt:
    made = DurabilityReceipt(id=ID, tenant="dev", partition=0, statements=list(statements))
    return msgspec.structs.replace(made, **changed)


def test_a_quorum_of_good_statements_is_proof() -> None:
    verdict = verify_receipt(receipt(signed(1), signed(3)), TRUSTED, DIGEST)
    assert verdict.is_proven and verdict.signers == (1, 3) and verdict.voters == (1, 2, 3)


def test_a_receipt_survives_its_own_spelling() -> None:
    made = receipt(signed(1), signed(2))
    data = msgspec.json.encode(made)
    assert verify_receipt(msgspec.json.decode(data, type=DurabilityReceipt), TRUSTED).is_proven


_forged = signed(2)
LACKING: Final = {
    "nobody": (receipt(), "nobody signed"),
    "one of three": (receipt(signed(1)), "1 of 3 voters signed, and 2 are a quorum"),
    "the same node twice": (receipt(signed(1), signed(1, at_ms=9)), "1 of 3 voters signed"),
    "another term": (receipt(signed(1), signed(2, term=4)), "differ in term"),
    "another entry": (receipt(signed(1), signed(2, entry_sha256="f" * 64)), "differ in entry"),
    "another cluster": (receipt(signed(1), signed(2, cluster="other")), "differ in cluster"),
    "not durable": (receipt(signed(1), signed(2, durable_index=51)), "ledger does not reach"),
    "no voter": (receipt(signed(1), signed(4)), "node 4: it does not vote"),
    "another's name": (
        receipt(signed(1), sign_statement(stated(2), KEYS[3])),
        "its key belongs to node 3",
    ),
    "a stranger's key": (
        receipt(
            signed(1), sign_statement(stated(2), Ed25519PrivateKey.from_private_bytes(b"x" * 32))
        ),
        "not among the trusted",
    ),
    "changed after it was signed": (
        receipt(
            signed(1),
            msgspec.structs.replace(_forged, statement=stated(2, durable_index=99)),
        ),
        "the signature does not fit",
    ),
    "another id": (receipt(signed(1), signed(2), id="10-53-" + DIGEST[:16]), "its id is not"),
    "another version": (receipt(signed(1), signed(2), version=2), "of version 2"),
    "half of a joint configuration": (
        receipt(signed(1, outgoing=(3, 4, 5)), signed(2, outgoing=(3, 4, 5))),
        "0 of 3 voters signed",
    ),
    "a quorum of one view and not of the other": (
        receipt(signed(1), signed(2, voters=(1, 2, 3, 4, 5))),
        "2 of 5 voters signed, and 3 are a quorum",
    ),
}


@pytest.mark.parametrize(("made", "fault"), LACKING.values(), ids=LACKING.keys())
def test_what_lacks_something_is_no_proof(made: DurabilityReceipt, fault: str) -> None:
    verdict = verify_receipt(made, TRUSTED)
    assert not verdict.is_proven and any(fault in each for each in verdict.faults), verdict


@pytest.mark.parametrize(("topic", "payload"), [(b"lamp/", b"7on"), (b"lamp/7", b"off")])
def test_it_is_about_one_message_alone(topic: bytes, payload: bytes) -> None:
    verdict = verify_receipt(receipt(signed(1), signed(2)), TRUSTED, digest_message(topic, payload))
    assert not verdict.is_proven and "another message" in verdict.faults[0]
