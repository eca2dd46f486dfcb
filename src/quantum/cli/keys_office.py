"""`quantum keys` for the keys that people sign with: releases, overrides, emergencies (§12.4)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from clustor.control import Command, KeyPurpose, RegisterKey, RetireKey, SigningKey
from clustor.control.features import ManifestContent
from clustor.control.overrides import OverrideContent
from clustor.runtime.audit.record_once import command_event, record_now
from clustor.runtime.cluster_file import CLUSTER_FILE, read_cluster_file
from clustor.runtime.control.reports import build_version
from clustor.runtime.development import node_directory
from clustor.runtime.keys.break_glass import GlassCertificates
from clustor.runtime.keys.device import FileKeyDevice
from clustor.runtime.keys.operator_keys import OFFICE_DIRECTORY, Office
from clustor.runtime.keys.store import KEYS_DIRECTORY
from clustor.runtime.pki.certificate_files import replace_file
from clustor.runtime.pki.identity import (
    GLASS_FILE,
    PKI_DIRECTORY,
    DevelopmentAuthority,
    load_authority,
)
from clustor.runtime.release import RELEASE_FILE, RELEASE_KEYS_FILE, release_here
from clustor.security import AuditEvent, KeyUse
from clustor.security.signer_rotation import SignerStep
from clustor.wall_clock import wall_clock_ms
from quantum.cli.admin_api import AdminApi, Told
from quantum.cli.admin_asking import fail_told, telling
from quantum.cli.admin_client import parse_address
from quantum.cli.exits import Exit, fail


class Content(StrEnum):
    """What can be signed for the control plane."""

    OVERRIDE = "override"
    FEATURES = "features"


_CONTENTS: Final[dict[Content, Any]] = {
    Content.OVERRIDE: OverrideContent,
    Content.FEATURES: ManifestContent,
}


class ApiRegistrar:
    """The control plane's registry of keys, asked through a node's API."""

    def __init__(self, admin: str) -> None:
        try:
            self._api = AdminApi(parse_address(admin))
        except ValueError as error:
            fail(str(error), Exit.USAGE)

    def registered(self) -> Iterable[SigningKey]:
        told = self._ask("GET", "/v1/keys", None)
        try:
            return msgspec.convert(told.body["keys"], list[SigningKey], strict=False)
        except (msgspec.ValidationError, KeyError, TypeError):
            _not_understood("/v1/keys")

    def call(self, command: Command) -> None:
        match command:
            case RegisterKey():
                self._ask("POST", "/v1/keys", msgspec.to_builtins(command))
            case RetireKey():
                path = f"/v1/keys/{command.purpose.value}/{command.key_id}/retire"
                self._ask("POST", path, {"retires_at": command.retires_at})
            case _:
                raise AssertionError(command)

    def _ask(self, method: str, path: str, body: object) -> Told:
        if isinstance(body, dict):
            body = {name: value for name, value in body.items() if name != "kind"}
        with telling():
            told = self._api.ask(method, path, body=body)
        if not told.is_done:
            fail_told(told)
        return told


def _not_understood(path: str) -> NoReturn:
    fail(f"{path} was answered by something else", Exit.FAILED)


class _Collected:
    """Keeps what the office notes until the command is over."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def note(self, event: AuditEvent) -> bool:
        self.events.append(event)
        return True


def open_office(data: Path, audit: _Collected | None = None) -> Office:
    """Open the office of a cluster's directory; raises NodeError, KeyUnavailable."""
    cluster = read_cluster_file(data / CLUSTER_FILE)
    pki = data / PKI_DIRECTORY

    def publish(bundle: bytes) -> None:
        for entry in cluster.nodes:
            directory = node_directory(data, entry.id) / PKI_DIRECTORY
            if directory.exists():
                replace_file(directory / GLASS_FILE, bundle, 0o644)

    def authority() -> DevelopmentAuthority:
        return load_authority(pki, cluster.id)

    keys = data / KEYS_DIRECTORY
    device = FileKeyDevice(keys / OFFICE_DIRECTORY)
    glass = GlassCertificates(pki, authority, publish)
    return Office(keys, device, glass, version=build_version(), audit=audit)


def rotate_office(data: Path, use: KeyUse, admin: str) -> dict[str, Any]:
    """Begin a new key, and go on as far as its time allows."""
    kept = _Collected()
    office = open_office(data, kept)
    office.wish(use)
    _tend(data, office, kept, admin, (use,))
    newest = office.registry.of(use)[-1]
    from_ms = newest.activated_at_ms or newest.activates_at_ms
    return {"use": use.value, "epoch": newest.epoch, "signs_from": from_ms}


def tend_office(data: Path, admin: str) -> list[dict[str, Any]]:
    """Do what is due for all uses; return what was done."""
    kept = _Collected()
    steps = _tend(data, open_office(data, kept), kept, admin, None)
    return [
        {"step": type(each).__name__, "use": each.use.value, "epoch": each.epoch} for each in steps
    ]


def _tend(
    data: Path, office: Office, kept: _Collected, admin: str, uses: tuple[KeyUse, ...] | None
) -> list[SignerStep]:
    registrar = ApiRegistrar(admin)
    try:
        return office.tend(registrar, uses) if uses else office.tend(registrar)
    finally:
        if kept.events:
            record_now(data, kept.events)


def sign_content(data: Path, content: Content, file: Path) -> dict[str, Any]:
    """Sign what a file holds with the CPReleaseKey in force."""
    try:
        decoded = msgspec.json.decode(file.read_bytes(), type=_CONTENTS[content])
    except (msgspec.MsgspecError, UnicodeError) as error:
        fail(f"{file} is not the content of an {content.value}: {error}", Exit.USAGE)
    kept = _Collected()
    signature = open_office(data, kept).sign(KeyPurpose.CP_RELEASE, decoded)
    facts = {"key_id": signature.key_id, "content": content.value}
    event = command_event("ContentSigned", "Done", KeyUse.CP_RELEASE.value, facts)
    record_now(data, [*kept.events, event])
    signed: dict[str, Any] = msgspec.to_builtins(signature)
    return signed


def sign_release(data: Path) -> dict[str, Any]:
    """Describe and sign what this command runs from, and give it to every node.

    A node that has it starts from these very files only.
    """
    kept = _Collected()
    office = open_office(data, kept)
    release, keys = release_here(office, build_version(), wall_clock_ms())
    cluster = read_cluster_file(data / CLUSTER_FILE)
    for entry in cluster.nodes:
        pki = node_directory(data, entry.id) / PKI_DIRECTORY
        if pki.exists():  # the release first: keys without one let nobody start
            replace_file(pki / RELEASE_FILE, msgspec.json.encode(release) + b"\n", 0o644)
            replace_file(pki / RELEASE_KEYS_FILE, msgspec.json.encode(keys) + b"\n", 0o644)
    facts = {"version": release.manifest.version, "files": str(len(release.manifest.files))}
    event = command_event("ReleaseSigned", "Done", release.key_id, facts)
    record_now(data, [*kept.events, event])
    return {"key_id": release.key_id, **facts}
