"""DescribeUserScramCredentials, AlterUserScramCredentials: the tenant's users, by KIP-554."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from quantum.config.live import USER_NAME, USER_PREFIX
from quantum.protocols.kafka.codec import KafkaCode
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.protocols.kafka.session.tenant_changes import (
    Refusal,
    asker_of,
    records_for,
    refusal_of,
)
from quantum.tenancy import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES_MAX,
    SCRAM_256,
    SCRAM_512,
    Operation,
    credential_of,
    key_bytes,
)
from quantum.tenants.kept_passwords import KeptPassword, read_kept
from quantum.tenants.tenant_records import ChangeRefused, Document

_MECHANISM_OF: Final = {1: SCRAM_256, 2: SCRAM_512}
_NUMBER_OF: Final = {name: number for number, name in _MECHANISM_OF.items()}
_UNACCEPTABLE: Final = KafkaCode.unacceptable_credential
_NO_USER: Final[Refusal] = (KafkaCode.resource_not_found, "there is no such credential")

ScramChange = Callable[[KeptPassword], KeptPassword]


def on_describe_users(request: KafkaRequest) -> None:
    """Say which users have keys for SCRAM, and with how many iterations."""
    records = records_for(request, Operation.MANAGE)
    if isinstance(records, tuple):
        code, words = records
        request.answer({"error_code": code, "error_message": words, "results": []})
        return
    document = records.document(request.tenant.name)
    if request.body.users:
        counted = Counter(each.name for each in request.body.users)
        rows = [_described(document, name, count) for name, count in counted.items()]
    else:
        names = sorted(key.removeprefix(USER_PREFIX) for key in document if _is_user(key))
        rows = [row for name in names if (row := _described(document, name, 1))["credential_infos"]]
    request.answer({"error_code": KafkaCode.none, "error_message": None, "results": rows})


def _is_user(key: str) -> bool:
    return key.startswith(USER_PREFIX)


def _described(document: Document, name: str, count: int) -> dict[str, Any]:
    kept = read_kept(document.get(USER_PREFIX + name))
    row: dict[str, Any] = {"user": name, "error_code": KafkaCode.none, "error_message": None}
    row["credential_infos"] = []
    if count > 1:
        words = "the user is named twice in one request"
        return row | {"error_code": KafkaCode.duplicate_resource, "error_message": words}
    if not kept.scram:
        return row | {"error_code": _NO_USER[0], "error_message": _NO_USER[1]}
    infos = [
        {"mechanism": _NUMBER_OF[mechanism], "iterations": each.iterations}
        for mechanism, each in sorted(kept.scram.items())
    ]
    return row | {"credential_infos": infos}


def on_alter_users(request: KafkaRequest) -> None:
    """Give users keys for SCRAM, or take them: all that can be in one change of the tenant."""
    alteration = _ScramAlteration(request)
    records = records_for(request, Operation.MANAGE)
    if isinstance(records, tuple):
        alteration.refuse_all(*records)
    elif alteration.changes:
        name, change = request.tenant.name, alteration.apply
        records.change_document(asker_of(request), name, change, alteration.settled)
    else:
        alteration.answer()


class _ScramAlteration:
    """One request: what is to be done for each user, and what it is told."""

    def __init__(self, request: KafkaRequest) -> None:
        self._request = request
        self.changes: dict[str, list[tuple[str, ScramChange | None]]] = {}
        """By user: mechanism, and its new keys; None: they are taken away."""
        self._refused: dict[str, Refusal] = {}
        self._missing: dict[str, Refusal] = {}
        """Found out while the change was made, anew with each try."""
        body = request.body
        for each in body.deletions:
            self._add(each, _refuse_named(each), None)
        for each in body.upsertions:
            refusal = _refuse_named(each) or _refuse_keys(each)
            self._add(each, refusal, None if refusal else _upsertion(each))

    def _add(self, wanted: Any, refusal: Refusal | None, change: ScramChange | None) -> None:
        name, mechanism = wanted.name, _MECHANISM_OF.get(wanted.mechanism, "")
        held = self.changes.setdefault(name, [])
        if refusal is None and any(mechanism == each for each, _ in held):
            refusal = KafkaCode.duplicate_resource, "the credential is named twice in one request"
        if refusal is not None:
            self._refused.setdefault(name, refusal)
        held.append((mechanism, change))

    def apply(self, document: Document) -> Document:
        """Return the document as it shall be: a user of whom anything is wrong stays as it is."""
        self._missing = {}
        wanted = dict(document)
        for name, changes in self.changes.items():
            if name in self._refused:
                continue
            kept = read_kept(document.get(USER_PREFIX + name))
            if any(change is None and each not in kept.scram for each, change in changes):
                self._missing[name] = _NO_USER
                continue
            for mechanism, change in changes:
                kept = kept.without_scram(mechanism) if change is None else change(kept)
            if kept:
                wanted[USER_PREFIX + name] = kept.text()
            else:
                del wanted[USER_PREFIX + name]
        return wanted

    def settled(self, refused: ChangeRefused | None) -> None:
        if refused is None:
            self.answer()
        else:
            self.refuse_all(*refusal_of(refused))

    def refuse_all(self, code: KafkaCode, words: str | None) -> None:
        self._refused = dict.fromkeys(self.changes, (code, words)) | self._refused
        self.answer()

    def answer(self) -> None:
        told = self._missing | self._refused
        good: Refusal = (KafkaCode.none, None)
        rows = [(name, *told.get(name, good)) for name in self.changes]
        self._request.answer(
            {
                "results": [
                    {"user": name, "error_code": code, "error_message": words}
                    for name, code, words in rows
                ]
            }
        )


def _refuse_named(wanted: Any) -> Refusal | None:
    if not USER_NAME.fullmatch(wanted.name):
        words = "a name has 1 to 64 letters, digits, dots, dashes and underscores"
        return _UNACCEPTABLE, words
    if wanted.mechanism not in _MECHANISM_OF:
        return KafkaCode.unsupported_sasl_mechanism, "SCRAM-SHA-256 or SCRAM-SHA-512"
    return None


def _refuse_keys(wanted: Any) -> Refusal | None:
    if not ITERATIONS_MIN <= wanted.iterations <= ITERATIONS_MAX:
        return _UNACCEPTABLE, f"{ITERATIONS_MIN} to {ITERATIONS_MAX} iterations"
    if not 0 < len(wanted.salt) <= SALT_BYTES_MAX:
        return _UNACCEPTABLE, f"a salt has 1 to {SALT_BYTES_MAX} bytes"
    if len(wanted.salted_password) != key_bytes(_MECHANISM_OF[wanted.mechanism]):
        return _UNACCEPTABLE, "the salted password has another length than its hash"
    return None


def _upsertion(wanted: Any) -> ScramChange:
    mechanism = _MECHANISM_OF[wanted.mechanism]
    facts = (mechanism, wanted.salted_password, wanted.salt, int(wanted.iterations))
    credential = credential_of(*facts)
    return lambda kept: kept.with_scram(mechanism, credential)
