"""Keys that people sign with: registered before they sign, an overlap, and an end."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from clustor.control import (
    Command,
    KeyPurpose,
    OverrideContent,
    OverrideScope,
    RecordOverride,
    RefusalCode,
    Refused,
    SigningKey,
    scan,
)
from clustor.log.errors import KeyUnavailable
from clustor.runtime.keys import break_glass as break_glass_ca
from clustor.runtime.keys import device as key_device
from clustor.runtime.keys import operator_keys as office_keys
from clustor.runtime.keys import signers as signer_keys
from clustor.runtime.keys.break_glass import GlassCertificates
from clustor.runtime.keys.device import DeviceKey, FileKeyDevice
from clustor.runtime.keys.operator_keys import OFFICE_DIRECTORY, Office, minor_of
from clustor.runtime.pki.certificate_files import load_certificates
from clustor.runtime.pki.identity import (
    GLASS_FILE,
    NodeId,
    admin_context,
    client_context,
    cluster_id,
    create_authority,
    issue_certificate,
    issue_node,
    load_authority,
    server_context,
)
from clustor.runtime.pki.revocation import write_revocations
from clustor.security import KEY_RULES, KeyState, KeyUse
from clustor.security.key_registry import DAY_MS
from clustor.security.signer_rotation import OFFICE_USES, READ_BY_ALL_MS
from tests.clustor.control.plane import ACTOR, OPERATOR, Plane

CP, RELEASE, GLASS = OFFICE_USES
DEV = cluster_id("dev")


class Crash(Exception):
    """The process ends here."""


class World:
    """An office, a control plane that does not crash, a node's admin files, and a clock."""

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, now_ms: int = 1_800_000_000_000
    ) -> None:
        self.keys, self.pki, self.node = root / "keys", root / "pki", root / "node"
        self.keys.mkdir()
        self.plane = Plane()
        self.plane.now_ms = self.now_ms = now_ms
        self.writes = 0
        self.crash_at: tuple[int, str] | None = None
        now = self.now()
        issue_node(create_authority(self.pki, DEV, now), NodeId(1), self.node, now)
        for module in (office_keys, key_device, break_glass_ca):
            monkeypatch.setattr(module, "write_durably", self._crashing(_written))
        monkeypatch.setattr(key_device, "overwrite", self._crashing(signer_keys.overwrite))
        self.version = "1.4.2"
        self.restart()

    def _crashing(self, act: Callable[..., None]) -> Callable[..., None]:
        def wrapped(*arguments: Any) -> None:
            self.writes += 1
            if self.crash_at == (self.writes, "before"):
                raise Crash
            act(*arguments)
            if self.crash_at == (self.writes, "after"):
                raise Crash

        return wrapped

    def has_crashed(self) -> bool:
        return self.crash_at is None

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_ms / 1000, UTC)

    def restart(self) -> None:
        glass = GlassCertificates(
            self.pki,
            lambda: load_authority(self.pki, DEV),
            lambda bundle: _written(self.node / GLASS_FILE, bundle),
        )
        device = FileKeyDevice(self.keys / OFFICE_DIRECTORY)
        self.office = Office(
            self.keys, device, glass, version=self.version, now_ms=lambda: self.now_ms
        )

    def registered(self) -> Iterable[SigningKey]:
        return list(scan(self.plane.machine.kv, SigningKey))

    def call(self, command: Command) -> None:
        answer = self.plane.call(command, by=OPERATOR)
        assert not isinstance(answer, Refused), answer

    def tend(self, turns: int = 1, step_ms: int = 0) -> None:
        for _ in range(turns):
            try:
                self.office.tend(self)
            except Crash:
                self.crash_at = None
                self.restart()
            self.pass_time(step_ms)

    def pass_time(self, step_ms: int) -> None:
        self.now_ms += step_ms
        self.plane.now_ms = self.now_ms

    def rotate(self, *uses: KeyUse) -> None:
        for use in uses:
            self.office.wish(use)
        self.tend()
        self.pass_time(READ_BY_ALL_MS)
        self.tend()

    def epoch(self, use: KeyUse) -> int:
        active = self.office.registry.active(use)
        assert active is not None
        return active.epoch

    def states(self, use: KeyUse) -> list[KeyState]:
        return [each.state for each in self.office.registry.of(use)]

    def override(self, name: str) -> RecordOverride:
        content = OverrideContent(
            override_id=name,
            scope=OverrideScope.CREDIT,
            partitions=(),
            ticket_url="https://tickets/1",
            justification="a drill",
            expires_at=self.now_ms + 90 * DAY_MS,
        )
        signature = self.office.sign(KeyPurpose.CP_RELEASE, content)
        values = {name: getattr(content, name) for name in content.__struct_fields__}
        return RecordOverride(**values, signature=signature)

    def enter(self, command: RecordOverride) -> RefusalCode | None:
        self.plane.break_glass(f"t-{self.now_ms}-{command.override_id}", OverrideScope.CREDIT)
        token = f"t-{self.now_ms}-{command.override_id}"
        answer = self.plane.call(command, by=ACTOR, token=token)
        return answer.code if isinstance(answer, Refused) else None


def _written(path: Path, data: bytes, _mode: int = 0o600) -> None:
    path.write_bytes(data)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_nobody_has_such_keys_before_somebody_asks_for_them(world: World) -> None:
    world.tend()
    assert world.office.registry.entries == ()
    assert world.office.glass_authority(timedelta(minutes=5)) is None
    with pytest.raises(KeyUnavailable, match="quantum keys rotate"):
        world.override("o1")


def test_a_key_signs_only_after_it_was_registered_and_read_by_all(world: World) -> None:
    world.office.wish(CP)
    world.tend()
    with pytest.raises(KeyUnavailable):
        world.override("o1")
    world.pass_time(READ_BY_ALL_MS)
    assert world.enter(world.override("o1")) is None  # taken up by the first signature
    assert world.states(CP) == [KeyState.ACTIVE]


def test_an_old_release_key_verifies_through_its_overlap_and_no_longer(world: World) -> None:
    world.rotate(CP)
    kept, late = world.override("kept"), world.override("late")
    world.rotate(CP)
    assert world.states(CP) == [KeyState.DECRYPT_ONLY, KeyState.ACTIVE]
    world.pass_time(DAY_MS - 1 - READ_BY_ALL_MS)
    assert world.enter(kept) is None
    world.pass_time(READ_BY_ALL_MS + 1)
    assert world.enter(late) is RefusalCode.BAD_SIGNATURE
    assert world.enter(world.override("new")) is None
    world.tend()
    assert world.states(CP) == [KeyState.ZEROIZED, KeyState.ACTIVE]


def test_release_keys_rotate_with_minors_and_the_others_with_time(world: World) -> None:
    world.rotate(*OFFICE_USES)
    world.version = "1.4.9"
    world.restart()
    world.rotate()
    assert [world.epoch(use) for use in OFFICE_USES] == [1, 1, 1]
    world.version = "1.5.0"
    world.restart()
    world.rotate()
    assert [world.epoch(use) for use in OFFICE_USES] == [2, 1, 1]
    world.pass_time(38 * DAY_MS)
    world.rotate()
    assert [world.epoch(use) for use in OFFICE_USES] == [2, 1, 2]
    world.pass_time(143 * DAY_MS)
    world.rotate()
    assert [world.epoch(use) for use in OFFICE_USES] == [2, 2, 3]
    assert minor_of("source") == "source"


def test_the_registry_keeps_what_the_specification_says() -> None:
    rule = KEY_RULES[GLASS]
    assert rule.period_ms is not None
    assert rule.period_ms + rule.overlap_ms == 45 * DAY_MS
    assert rule.overlap_ms >= 7 * DAY_MS
    assert KEY_RULES[RELEASE].period_ms == 180 * DAY_MS
    assert FileKeyDevice.is_hardware is False  # and `quantum keys` says so


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 24))
def test_a_crash_at_any_write_changes_nothing_in_the_end(
    world: World, number: int, moment: str
) -> None:
    world.rotate(*OFFICE_USES)
    for use in OFFICE_USES:
        world.office.wish(use)
    world.writes = 0
    world.crash_at = (number, moment)
    world.tend(8, READ_BY_ALL_MS)
    world.pass_time(8 * DAY_MS)
    world.tend(5)
    assert world.has_crashed(), f"there are only {world.writes} writes"
    for use in OFFICE_USES:
        assert world.states(use) == [KeyState.ZEROIZED, KeyState.ACTIVE], use
        ids = [each.key_id for each in world.registered() if each.purpose.value == use.value]
        assert len([each for each in ids if each.startswith("office-")]) == 2
    files = sorted(path.name for path in (world.keys / OFFICE_DIRECTORY).iterdir())
    assert files == sorted(f"{use.value}-2.key" for use in OFFICE_USES)
    assert len(load_certificates(world.node / GLASS_FILE)) == 1
    assert not list(world.keys.glob("rotate-*"))


# Break-glass certificates.


def glass_file(world: World, name: str, uri: str = "spiffe://dev/operator/ada") -> Path:
    authority = world.office.glass_authority(timedelta(minutes=5))
    assert authority is not None
    issued = issue_certificate(
        authority,
        "glass",
        [x509.UniformResourceIdentifier(uri)],
        [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH],
        now=datetime.now(UTC),
        lifetime=timedelta(minutes=5),
    )
    path = world.pki / name
    chain = b"".join(
        each.read_bytes() for each in sorted(world.pki.glob("break-glass-ca-*.pem"), reverse=True)
    )
    path.write_bytes(issued.certificate_pem + chain + issued.key_pem)
    return path


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    to_server, to_client = (ssl.MemoryBIO(), ssl.MemoryBIO()), (ssl.MemoryBIO(), ssl.MemoryBIO())
    one = server.wrap_bio(to_server[0], to_server[1], server_side=True)
    other = client.wrap_bio(to_client[0], to_client[1])
    for _ in range(4):
        for side in (other, one):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        to_server[0].write(to_client[1].read())
        to_client[0].write(to_server[1].read())


def caller(world: World, certificate: Path) -> ssl.SSLContext:
    context = client_context(world.node)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
def today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world that began a while ago: OpenSSL asks the real clock."""
    eight_days_ago = datetime.now(UTC) - timedelta(days=8)
    return World(tmp_path, monkeypatch, int(eight_days_ago.timestamp() * 1000))


@pytest.mark.parametrize("lists", [False, True], ids=["no lists", "lists are asked"])
def test_the_admin_port_alone_believes_a_break_glass_authority(today: World, lists: bool) -> None:
    today.rotate(GLASS)
    if lists:
        write_revocations(
            load_authority(today.pki, DEV), {}, today.node / "crl.pem", datetime.now(UTC)
        )
    file = glass_file(today, "glass.pem", "spiffe://dev/node/1")
    shake(admin_context(today.node), caller(today, file))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server_context(today.node), caller(today, file))


def test_what_the_old_authority_signed_is_believed_through_the_overlap(today: World) -> None:
    today.rotate(GLASS)
    old = glass_file(today, "old.pem")
    today.rotate(GLASS)
    new = glass_file(today, "new.pem")
    assert x509.load_pem_x509_certificate(old.read_bytes()).issuer != (
        x509.load_pem_x509_certificate(new.read_bytes()).issuer
    )
    for file in (old, new):
        shake(admin_context(today.node), caller(today, file))
    today.pass_time(7 * DAY_MS)
    today.tend()
    assert today.states(GLASS) == [KeyState.ZEROIZED, KeyState.ACTIVE]
    shake(admin_context(today.node), caller(today, new))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(admin_context(today.node), caller(today, old))


def test_nothing_is_signed_that_would_outlive_its_authority(world: World) -> None:
    world.rotate(GLASS)
    world.pass_time(45 * DAY_MS - 2 * READ_BY_ALL_MS)
    assert world.office.glass_authority(timedelta(seconds=1)) is not None
    with pytest.raises(KeyUnavailable, match="ends before"):
        world.office.glass_authority(timedelta(minutes=5))


def test_a_device_gives_no_key_away(tmp_path: Path) -> None:
    device = FileKeyDevice(tmp_path / "office")
    public = device.make("a-1")
    assert device.make("a-1") == public
    held = DeviceKey(device, "a-1")
    held.public_key().verify(held.sign(b"content"), b"content")
    assert (tmp_path / "office" / "a-1.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(KeyUnavailable):
        held.private_bytes_raw()
    device.destroy("a-1")
    device.destroy("a-1")
    with pytest.raises(KeyUnavailable):
        device.sign("a-1", b"content")
