"""People's keys on a real node under TLS: registered, signed with, believed; and its release."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import msgspec

from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file, read_cluster_file
from clustor.runtime.control.records import operator_of
from clustor.runtime.development import node_directory
from clustor.runtime.hardening import Hardening
from clustor.runtime.pki.certificate_files import load_certificates
from clustor.runtime.pki.identity import PKI_DIRECTORY
from clustor.runtime.release import RELEASE_FILE
from quantum.cli import admin, keys
from tests.interop.test_admin_api import CLUSTER, ONE, TlsNode, run, served

ACTOR = "spiffe://dev/operator/eve"
DEADLINE_SECONDS = 180.0
MONTH_MS = 30 * 86_400_000


class Place(TlsNode):
    """A node, and an Operator who speaks to it."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.data = data
        self.operator = self.issue(operator_of(CLUSTER).identity)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def speaking(self) -> list[object]:
        return ["--admin", self.admin, "--cert", self.operator, "--ca", self.authority]

    def up(self) -> None:
        self.process = self.start()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not served(self.api(self.operator)):
            assert self.process.poll() is None, self.journal()
            assert time.monotonic() < deadline, self.journal()
            time.sleep(0.02)

    def down(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(DEADLINE_SECONDS)

    def ended(self) -> int:
        """Start it, and return how it refused to run."""
        process = self.start()
        try:
            return process.wait(DEADLINE_SECONDS)
        finally:
            process.kill()

    def journal(self) -> str:
        return (self.data / "node-1.log").read_text()

    def rotate(self, *uses: str) -> None:
        """Ask for keys, and wait until they sign."""
        for use in uses:
            given = ["rotate", "--use", use, "--data", self.data]
            code, output = run(keys.app, *given, *self.speaking)
            assert code == 0, output
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not set(uses) <= self.active().keys():
            run(keys.app, "tend", "--data", self.data, *self.speaking)
            assert time.monotonic() < deadline, self.active()
            time.sleep(0.1)

    def active(self) -> dict[str, int]:
        rows = json.loads(run(keys.app, "list", "--data", self.data, "--json")[1]).get("office", [])
        newest = {row["use"]: row for row in rows}
        return {use: row["epoch"] for use, row in newest.items() if row["state"] == "Active"}

    def glass(self, out: Path) -> None:
        given = ["break-glass", "certificate", "Credit", ACTOR, "--ticket", "https://tickets/7"]
        code, output = run(admin.app, *given, "--data", self.data, "--out", out, *self.speaking)
        assert code == 0, output

    def override(self, name: str, root: Path, certificate: Path) -> tuple[int, str]:
        """Sign an override and enter it, as whoever has a certificate for emergencies."""
        ends_at = int(time.time() * 1000) + MONTH_MS
        content = {
            "override_id": name,
            "scope": "Credit",
            "partitions": [],
            "ticket_url": "https://tickets/7",
            "justification": "a drill",
            "expires_at": ends_at,
        }
        (root / "content.json").write_text(json.dumps(content))
        code, output = run(keys.app, "sign", "override", root / "content.json", "--data", self.data)
        assert code == 0, output
        (root / "signature.json").write_text(output)
        given = ["overrides", "record", "--override-id", name, "--scope", "Credit"]
        given += ["--ticket-url", "https://tickets/7", "--justification", "a drill"]
        given += ["--expires-at", str(ends_at), "--signature", f"@{root / 'signature.json'}"]
        speaking = ["--admin", self.admin, "--cert", certificate, "--ca", self.authority]
        return run(admin.app, *given, *speaking)


def test_an_emergency_under_keys_of_their_own_and_a_release_that_is_verified(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path / "var")
    place.up()
    try:
        before = tmp_path / "before.pem"
        place.glass(before)  # of the cluster's own authority, while there is no other
        place.rotate("CPReleaseKey", "BreakGlassTokenCA", "ReleaseAutomationKey")
        code, output = place.override("o0", tmp_path, before)
        assert code == 9 and "BreakGlassIssuer" in output, output

        first, old, new = (tmp_path / f"{name}.pem" for name in ("first", "old", "new"))
        for out in (first, old):
            place.glass(out)
        code, output = place.override("o1", tmp_path, first)
        assert code == 0, output
        assert not first.exists()  # used, and gone

        place.rotate("BreakGlassTokenCA")
        place.glass(new)
        issuers = {load_certificates(each)[0].issuer for each in (old, new)}
        assert len(issuers) == 2
        for name, certificate in (("o2", old), ("o3", new)):  # the overlap is seven days
            code, output = place.override(name, tmp_path, certificate)
            assert code == 0, output

        code, output = run(keys.app, "sign-release", "--data", place.data)
        assert code == 0, output
    finally:
        place.down()
    place.up()  # these very files are what was signed
    place.down()
    assert "hardened: no core dumps" in place.journal()

    path = node_directory(place.data, ONE) / PKI_DIRECTORY / RELEASE_FILE
    kept = path.read_bytes()
    path.write_bytes(kept.replace(b'"clustor/__init__.py":"', b'"clustor/__init__.py":"00', 1))
    assert place.ended() == 7
    assert "not the release that was signed" in place.journal()
    path.write_bytes(kept)


def test_a_cluster_that_requires_hardening_starts_from_a_signed_release_only(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path / "var")
    file = place.data / CLUSTER_FILE
    strict = msgspec.structs.replace(read_cluster_file(file), hardening=Hardening.REQUIRE)
    file.write_bytes(encode_cluster_file(strict))
    assert place.ended() == 7
    assert "the cluster requires a signed release" in place.journal()
    assert "Traceback" not in place.journal()
