"""Certificates, revocations and quarantine on real connections: what changes, and what stays."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path

import pytest

from clustor.runtime.errors import CertificateUnusable, NodeError
from clustor.runtime.pki.certificate_files import load_certificate
from clustor.runtime.pki.certificate_watch import FileWatch, NodeTrust
from clustor.runtime.pki.identity import (
    CERTIFICATE_FILE,
    KEY_FILE,
    REVOCATION_FILE,
    NodeId,
    create_authority,
    issue_node,
    utc_now,
)
from clustor.runtime.pki.revocation import (
    LIST_LIFETIME,
    keep_lists_of,
    lists_of,
    read_revocations,
    revoke_certificate,
    write_revocations,
)
from clustor.security import AuditEvent
from clustor.security.revocation import MAX_STALENESS_MS, WAIVER_MS_MAX
from tests.clustor.runtime.test_transport import CLUSTER, Peer, both_connected, packet, world
from tests.clustor.runtime.waiting import until


class Sink:
    """An audit log for tests."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def note(self, event: AuditEvent) -> bool:
        self.events.append(event)
        return True

    def said(self) -> list[tuple[str, str]]:
        return [(event.what, event.outcome) for event in self.events]


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


def serial_seen_by(peer: Peer, other: Peer) -> int:
    """Return the number of the certificate that `other` showed on the line that `peer` opened."""
    connection = peer.transport._lines[other.node].connection
    assert connection is not None
    assert connection.shown is not None
    return connection.shown.serial


async def test_a_renewed_certificate_is_for_new_connections_and_ends_none(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        pki = made.certificate(2)
        one, two = await made.peer(1), await made.peer(2, pki)
        sink = Sink()
        trust = NodeTrust(two.transport, pki, sink, Clock())
        await both_connected(one, two)
        before = serial_seen_by(one, two)
        issue_node(made.authority, NodeId(2), pki, utc_now())
        trust.look()
        assert trust.renewals == 1
        assert sink.said() == [("CertificateRenewed", "Done")]
        one.send(two, packet(1, 2, b"on the old connection"))
        await until(lambda: len(two.received) == 1, "it arrived")
        assert one.lost == two.lost == []
        assert serial_seen_by(one, two) == before
        one.transport.disconnect(two.node)
        await both_connected(one, two)
        assert serial_seen_by(one, two) == load_certificate(pki / CERTIFICATE_FILE).serial_number


async def test_a_key_without_its_certificate_is_not_used_until_both_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path) as made:
        pki = made.certificate(1)
        one = await made.peer(1, pki)
        trust = NodeTrust(one.transport, pki, None, Clock())
        before = one.transport.server_tls
        other = made.certificate(1)
        (pki / KEY_FILE).write_bytes((other / KEY_FILE).read_bytes())
        trust.look()
        trust.look()
        assert one.transport.server_tls is before
        assert caplog.text.count("not used yet") == 1
        (pki / CERTIFICATE_FILE).write_bytes((other / CERTIFICATE_FILE).read_bytes())
        trust.look()
        assert trust.renewals == 1
        assert one.transport.server_tls is not before


async def test_a_revoked_peer_is_cut_off_and_not_let_in_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with world(tmp_path) as made:
        pki, others = made.certificate(1), made.certificate(2)
        one, two = await made.peer(1, pki), await made.peer(2, others)
        sink = Sink()
        trust = NodeTrust(one.transport, pki, sink, Clock())
        await both_connected(one, two)
        revoked = load_certificate(others / CERTIFICATE_FILE)
        revoke_certificate(made.authority, revoked, pki / REVOCATION_FILE, utc_now())
        trust.look()
        assert ("PeerConnectionEnded", "CertificateRefused") in sink.said()
        await until(lambda: "was revoked" in caplog.text, "the refusal is named")
        assert one.transport.connected() == []
        issue_node(made.authority, NodeId(2), others, utc_now())
        two.transport.renew()
        await until(lambda: two.node in one.transport.connected(), "the new one is believed")
        await until(lambda: one.node in two.transport.connected(), "both ways")


async def test_an_ended_certificate_ends_its_open_connections(tmp_path: Path) -> None:
    """Whoever is too slow to connect before it ends gets one that lives longer."""
    for seconds in (2, 10, 60):
        root = tmp_path / str(seconds)
        root.mkdir()
        if await ends_in_time(root, timedelta(seconds=seconds)):
            return
    raise AssertionError("nobody connected in time")


async def ends_in_time(root: Path, lifetime: timedelta) -> bool:
    async with world(root) as made:
        pki = root / "short"
        issue_node(made.authority, NodeId(2), pki, utc_now(), lifetime=lifetime)
        ends = load_certificate(pki / CERTIFICATE_FILE).not_valid_after_utc
        one, two = await made.peer(1), await made.peer(2, pki)
        trust = NodeTrust(one.transport, made.certificate(1), None, Clock())
        one.transport.connect(two.node, two.address)
        two.transport.connect(one.node, one.address)

        def connected() -> bool:
            return two.node in one.transport.connected() and one.node in two.transport.connected()

        def ended() -> bool:
            trust.look()
            return two.node not in one.transport.connected()

        await until(lambda: connected() or utc_now() > ends, "they are connected, or it is late")
        if not connected():
            one.transport.disconnect(two.node)
            two.transport.disconnect(one.node)
            for _ in range(50):  # handshakes that were under way hear of it
                await asyncio.sleep(0)
            return False
        await until(ended, "the connection of an ended certificate ends")
        return True


async def test_stale_revocation_data_quarantines_this_node_alone(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        pki = made.certificate(1)
        write_revocations(made.authority, {}, pki / REVOCATION_FILE, utc_now())
        one, two, three = [await made.peer(1, pki), await made.peer(2), await made.peer(3)]
        clock, sink = Clock(), Sink()
        trust = NodeTrust(one.transport, pki, sink, clock)
        await both_connected(one, two)
        await both_connected(two, three)
        kept = (pki / REVOCATION_FILE).read_bytes()
        (pki / REVOCATION_FILE).unlink()
        clock.now_ms += MAX_STALENESS_MS
        trust.look()
        assert not one.transport.quarantined
        clock.now_ms += 1
        trust.look()
        assert "too old" in str(one.transport.quarantined)
        await until(lambda: two.transport.connected() == [3], "it speaks to nobody")
        assert three.lost == []
        assert one.transport.connected() == []
        trust.waive("ticket-1", 300_000)
        await until(lambda: one.node in two.transport.connected(), "a waiver lets it back")
        clock.now_ms += 300_000
        trust.look()
        await until(lambda: two.transport.connected() == [3], "the waiver has ended")
        (pki / REVOCATION_FILE).write_bytes(kept)
        trust.look()
        await until(lambda: one.node in two.transport.connected(), "fresh data lets it back")
        assert [outcome for what, outcome in sink.said() if what == "RevocationQuarantine"] == [
            "Entered", "Left", "Entered", "Left",
        ]  # fmt: skip


async def test_a_waiver_of_the_ledger_is_used_once_before_anything_is_closed(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as made:
        pki = made.certificate(1)
        write_revocations(made.authority, {}, pki / REVOCATION_FILE, utc_now())
        one, two = await made.peer(1, pki), await made.peer(2)
        clock, sink = Clock(), Sink()
        trust = NodeTrust(one.transport, pki, sink, clock)
        trust.waivers = lambda: [("over", 0), ("o1", 86_400_000)]
        await both_connected(one, two)
        trust.look()
        assert ("RevocationWaived", "Done") not in sink.said(), "it is not needed yet"
        (pki / REVOCATION_FILE).unlink()
        clock.now_ms += MAX_STALENESS_MS + 1
        trust.look()
        assert one.transport.quarantined is None
        assert ("RevocationWaived", "Done") in sink.said()
        clock.now_ms += WAIVER_MS_MAX
        trust.look()
        assert one.transport.quarantined is not None, "five minutes, and not once more"


async def test_a_waiver_does_not_cover_short_lived_certificates(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        pki, brief = made.certificate(1), tmp_path / "brief"
        write_revocations(made.authority, {}, pki / REVOCATION_FILE, utc_now())
        issue_node(made.authority, NodeId(2), brief, utc_now(), lifetime=timedelta(hours=24))
        one, two, three = [await made.peer(1, pki), await made.peer(2, brief), await made.peer(3)]
        clock, sink = Clock(), Sink()
        trust = NodeTrust(one.transport, pki, sink, clock)
        await both_connected(one, two)
        await both_connected(one, three)
        (pki / REVOCATION_FILE).unlink()
        clock.now_ms += MAX_STALENESS_MS + 1
        trust.waive("ticket-1", 300_000)
        trust.look()
        assert one.transport.quarantined is None
        await until(lambda: one.transport.connected() == [3], "the short-lived one has to go")
        await until(lambda: three.transport.connected() == [1], "the other is believed")
        assert ("PeerConnectionEnded", "CertificateRefused") in sink.said()


async def test_a_list_that_goes_missing_takes_nothing_back(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        pki, others = made.certificate(1), made.certificate(2)
        listed = pki / REVOCATION_FILE
        revoked = load_certificate(others / CERTIFICATE_FILE)
        revoke_certificate(made.authority, revoked, listed, utc_now())
        one, two = await made.peer(1, pki), await made.peer(2, others)
        trust = NodeTrust(one.transport, pki, None, Clock())
        listed.unlink()
        trust.look()  # handshakes ask no list any more
        told: list[Exception] = []
        one.transport.on_refused = lambda _peer, error: told.append(error)
        two.transport.connect(one.node, one.address)
        await until(lambda: bool(told), "it is refused all the same")
        assert "revoked" in str(told[0])
        assert one.transport.connected() == []


async def test_a_list_past_its_end_is_no_answer(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        pki = made.certificate(1)
        long_ago = utc_now() - LIST_LIFETIME - timedelta(days=1)
        write_revocations(made.authority, {}, pki / REVOCATION_FILE, long_ago)
        one = await made.peer(1, pki)
        NodeTrust(one.transport, pki, None, Clock())
        assert one.transport.quarantined == "no revocation data yet"


def test_a_list_grows_and_is_its_authoritys_alone(tmp_path: Path) -> None:
    authority = create_authority(tmp_path / "ca", CLUSTER, utc_now())
    other = create_authority(tmp_path / "other", CLUSTER, utc_now())
    path = tmp_path / REVOCATION_FILE
    numbers = set()
    for node in (1, 2):
        issue_node(authority, NodeId(node), tmp_path / f"{node}", utc_now())
        certificate = load_certificate(tmp_path / f"{node}" / CERTIFICATE_FILE)
        numbers.add(certificate.serial_number)
        revoke_certificate(authority, certificate, path, utc_now())
        revoke_certificate(authority, certificate, path, utc_now())
    assert set(read_revocations(path, authority.certificate)) == numbers
    assert read_revocations(path, other.certificate) == {}
    with pytest.raises(CertificateUnusable, match="another authority"):
        lists_of(path, [other.certificate])
    write_revocations(other, {7: utc_now()}, path, utc_now())
    assert set(read_revocations(path, authority.certificate)) == numbers
    assert set(read_revocations(path, other.certificate)) == {7}
    with pytest.raises(CertificateUnusable, match="another authority"):
        lists_of(path, [other.certificate])  # not in parts
    keep_lists_of([other.certificate], path)
    assert [signer for signer, _ in lists_of(path, [other.certificate])] == [other.certificate]


def test_a_watch_tries_again_until_it_works(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("1")
    results = [True, False, False, True]
    calls = []

    def reload() -> None:
        calls.append(1)
        if not results.pop(0):
            raise NodeError("not yet")

    watch = FileWatch((file,), reload, NodeError)
    assert not watch.look()  # the first load is no renewal
    assert not watch.look() and len(calls) == 1
    file.write_text("22")
    assert not watch.look() and not watch.look()
    assert watch.look() and watch.renewals == 1 and len(calls) == 4
    assert not watch.look()
