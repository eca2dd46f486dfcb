"""Break-glass certificates: one scope, one use, five minutes, and nothing else (clustor §12.3)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from typer.testing import CliRunner

from clustor.control import (
    IssueBreakGlass,
    KeyPurpose,
    OverrideScope,
    RegisterKey,
    RetireKey,
)
from clustor.runtime.cluster_file import CLUSTER_FILE
from clustor.runtime.development import prepare_cluster
from clustor.runtime.peers.transport import Address
from clustor.runtime.pki.identity import (
    DevelopmentAuthority,
    cluster_id,
    issue_certificate,
    load_authority,
    new_intermediate,
    utc_now,
)
from quantum.admin.break_glass import scope_of, token_id_of
from quantum.admin.identity import peer_of
from quantum.cli import admin as command
from quantum.cli.admin_break_glass import forget_used
from tests.clustor.control.plane import ACTOR, OPERATOR, STRANGER
from tests.quantum.admin.certificates import authority, certificate_of
from tests.quantum.admin.host import Desk, Host
from tests.quantum.admin.serving import served
from tests.quantum.admin.test_refusals import RESUME, _report, quarantined, trail

QUARANTINE = OverrideScope.QUARANTINE


def glass(
    scope: str = QUARANTINE.value,
    actor: str = ACTOR,
    *,
    seconds: int = 300,
    more: tuple[str, ...] = (),
    by: DevelopmentAuthority | None = None,
) -> bytes:
    uris = (actor, f"urn:clustor:breakglass:{scope}", *more)
    issued = issue_certificate(
        by or authority(),
        "glass",
        [x509.UniformResourceIdentifier(uri) for uri in uris],
        [ExtendedKeyUsageOID.CLIENT_AUTH],
        now=datetime.now(UTC),
        lifetime=timedelta(seconds=seconds),
        skew=timedelta(seconds=5),
    )
    return x509.load_pem_x509_certificate(issued.certificate_pem).public_bytes(Encoding.DER)


def token_of(certificate: bytes) -> str:
    peer = peer_of(certificate)
    assert peer is not None
    return token_id_of(peer.serial)


def registered(certificate: bytes, scope: OverrideScope = QUARANTINE) -> Desk:
    plane = quarantined()
    plane.break_glass(token_of(certificate), scope)
    return Desk(plane)


async def test_a_registered_certificate_works_once_without_being_named() -> None:
    certificate = glass()
    desk = registered(certificate)
    told = await desk.ask(*RESUME, certificate=certificate)
    assert told.code == 200, told.body
    record = trail(desk.plane)[-1]
    assert (record.break_glass, record.outcome) == (token_of(certificate), "Done")
    desk.plane.call(_report(), by="spiffe://prod/node/1")
    again = await desk.ask(*RESUME, certificate=certificate)
    assert (again.code, again.body["message"]) == (403, "the break-glass certificate was used")


@pytest.mark.parametrize(
    ("certificate", "registered_as", "code", "error"),
    [
        (glass(seconds=301), QUARANTINE, 401, "BreakGlassTooLong"),
        (glass("Snapshot"), QUARANTINE, 403, "Unauthorized"),
        (glass(), OverrideScope.SNAPSHOT, 403, "Unauthorized"),
        (glass(actor=STRANGER), QUARANTINE, 403, "Unauthorized"),
        (glass(more=("urn:clustor:breakglass:Credit",)), None, 401, "NoIdentity"),
        (glass(more=("https://else.example",)), None, 401, "NoIdentity"),
        (glass(), None, 403, "Unauthorized"),
    ],
    ids=["long", "scope", "registry", "actor", "two scopes", "other URI", "unregistered"],
)
async def test_what_does_not_fit_never_reaches_the_log(
    certificate: bytes, registered_as: OverrideScope | None, code: int, error: str
) -> None:
    desk = registered(certificate, registered_as) if registered_as else Desk(quarantined())
    before = len(trail(desk.plane))
    told = await desk.ask(*RESUME, certificate=certificate)
    assert (told.code, told.body["error"]) == (code, error), told.body
    assert len(trail(desk.plane)) == before


async def test_it_opens_nothing_else_and_names_no_other_token() -> None:
    certificate = glass(actor=OPERATOR)
    desk = Desk(quarantined())
    order = IssueBreakGlass(
        token_id=token_of(certificate),
        scope=QUARANTINE,
        actor_id=OPERATOR,
        ticket_url="https://tickets/1",
        ttl_ms=300_000,
    )
    desk.plane.done(order)
    for target in ("/v1/nodes", "/v1/cluster/state"):
        assert (await desk.ask("GET", target, certificate=certificate)).code == 403
        assert (await desk.ask("GET", target, certificate=certificate_of(OPERATOR))).code == 200
    certificate = glass()
    desk = registered(certificate)
    told = await desk.ask(*RESUME, certificate=certificate, headers={"break-glass": "g1"})
    assert told.code == 400


def dedicated(number: int) -> DevelopmentAuthority:
    """A BreakGlassTokenCA, as an office makes it."""
    key = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
    name = f"prod break-glass authority {number}"
    now, lifetime = datetime.now(UTC), timedelta(days=45)
    made = new_intermediate(authority(), key.public_key(), name, now, lifetime)
    return DevelopmentAuthority(authority().cluster_id, made, key)


def known(desk: Desk, by: DevelopmentAuthority, key_id: str) -> None:
    assert isinstance(by.key, Ed25519PrivateKey)
    public = by.key.public_key().public_bytes_raw()
    desk.plane.done(
        RegisterKey(purpose=KeyPurpose.BREAK_GLASS_CA, key_id=key_id, public_key=public)
    )


async def test_only_a_registered_authority_in_force_signs_for_emergencies() -> None:
    old, new = dedicated(1), dedicated(2)
    for by, error in ((None, "BreakGlassIssuer"), (dedicated(3), "BreakGlassIssuer"), (new, None)):
        certificate = glass(by=by)
        desk = registered(certificate)
        known(desk, old, "g1")
        known(desk, new, "g2")
        told = await desk.ask(*RESUME, certificate=certificate)
        assert (told.code, told.body.get("error")) == (401 if error else 200, error), told.body


@pytest.mark.parametrize(("left_ms", "code"), [(1, 200), (0, 401)], ids=["overlap", "over"])
async def test_an_old_authority_is_believed_to_the_end_of_its_overlap(
    left_ms: int, code: int
) -> None:
    old, new = dedicated(1), dedicated(2)
    certificate = glass(by=old)
    desk = registered(certificate)
    known(desk, old, "g1")
    known(desk, new, "g2")
    ends_at = desk.plane.now_ms + left_ms
    desk.plane.done(RetireKey(purpose=KeyPurpose.BREAK_GLASS_CA, key_id="g1", retires_at=ends_at))
    told = await desk.ask(*RESUME, certificate=certificate)
    assert told.code == code, told.body
    if code == 401:
        assert told.body["facts"]["key_id"] == "g1"
        assert "has ended" in told.body["message"]


class Place:
    def __init__(self, root: Path, address: Address) -> None:
        self.data, self.address = root / "var", address
        prepare_cluster(
            self.data, cluster_id("prod"), nodes=1, base_port=7_000, groups=1, now=utc_now()
        )

    def issue(self, out: Path, *more: str) -> Any:
        given = ["break-glass", "certificate", "Quarantine", "spiffe://prod/operator/eve"]
        given += ["--ticket", "https://tickets/7", "--data", str(self.data), "--out", str(out)]
        return CliRunner().invoke(command.app, [*given, "--admin", str(self.address), *more])


@pytest.fixture
def host() -> Host:
    return Host(quarantined())


@pytest.fixture
def place(tmp_path: Path, host: Host) -> Iterator[Place]:
    with served(host, development=OPERATOR) as (address, _):
        yield Place(tmp_path, address)


def test_the_command_registers_before_it_gives_and_the_file_is_gone_after_use(
    place: Place, host: Host, tmp_path: Path
) -> None:
    out = tmp_path / "glass.pem"
    result = place.issue(out, "--json")
    assert result.exit_code == 0, result.output
    certificate = x509.load_pem_x509_certificate(out.read_bytes())
    assert scope_of(certificate) == "Quarantine"
    assert out.stat().st_mode & 0o777 == 0o600
    assert json.loads(result.output)["token_id"] == f"svid-{certificate.serial_number:x}"
    record = trail(host.plane)[-1]
    assert (record.kind, record.outcome) == ("IssueBreakGlass", "Done")
    lives = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert lives == timedelta(seconds=305)
    forget_used(out)
    assert not out.exists()


def test_an_ordinary_certificate_is_not_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "mine.pem"
    content = x509.load_der_x509_certificate(certificate_of(OPERATOR)).public_bytes(Encoding.PEM)
    file.write_bytes(content)
    forget_used(file)
    assert file.read_bytes() == content


def test_what_was_not_registered_is_not_given(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "glass.pem"
    assert place.issue(out, "--seconds", "301").exit_code == 2
    (place.data / CLUSTER_FILE).rename(tmp_path / "elsewhere.json")
    assert place.issue(out).exit_code == 3
    (tmp_path / "elsewhere.json").rename(place.data / CLUSTER_FILE)
    load_authority(place.data / "pki", cluster_id("prod"))
    place.address = Address("127.0.0.1", 1)
    assert place.issue(out).exit_code == 12
    assert not out.exists()
