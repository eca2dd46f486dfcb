"""`quantum keys` for release keys and break-glass authorities, against a served API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from clustor.control import IssueBreakGlass, KeyPurpose, OverrideScope, SigningKey, scan
from clustor.runtime.cluster_file import CLUSTER_FILE, read_cluster_file
from clustor.runtime.development import prepare_cluster
from clustor.runtime.peers.transport import Address
from clustor.runtime.pki.certificate_files import load_certificates
from clustor.runtime.pki.identity import GLASS_FILE, cluster_id, utc_now
from clustor.runtime.release import check_release
from clustor.security import signer_rotation
from quantum.cli import admin, keys
from quantum.cli.supervisor import Supervisor
from tests.clustor.control.plane import OPERATOR
from tests.quantum.admin.host import Host
from tests.quantum.admin.serving import served
from tests.quantum.admin.test_refusals import quarantined

USES = ("CPReleaseKey", "ReleaseAutomationKey", "BreakGlassTokenCA")


class Place:
    def __init__(self, root: Path, address: Address, host: Host) -> None:
        self.data, self.address, self.host = root / "var", address, host
        prepare_cluster(
            self.data, cluster_id("prod"), nodes=2, base_port=7_000, groups=1, now=utc_now()
        )

    def run(self, *given: str, app: Any = keys.app) -> Any:
        return CliRunner().invoke(app, [*given, "--data", str(self.data)])

    def ask(self, *given: str, app: Any = keys.app) -> Any:
        return self.run(*given, "--admin", str(self.address), app=app)

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run("list", "--json").output).get(
            "office", []
        )
        return found


@pytest.fixture
def host() -> Host:
    return Host(quarantined())


@pytest.fixture
def place(tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(signer_rotation, "READ_BY_ALL_MS", 0)
    with served(host, development=OPERATOR) as (address, _):
        yield Place(tmp_path, address, host)


def test_each_key_is_registered_shown_and_due(place: Place) -> None:
    for use in USES:
        told = place.ask("rotate", "--use", use)
        assert told.exit_code == 0, told.output
    rows = {row["use"]: row for row in place.rows()}
    assert {use: rows[use]["state"] for use in USES} == dict.fromkeys(USES, "Active")
    assert [rows[use]["due"] is None for use in USES] == [True, False, False]
    assert {row["age_days"] for row in rows.values()} == {"0.0"}
    assert {row["kept"] for row in rows.values()} == {"files, no HSM"}
    purposes = [each.purpose.value for each in scan(place.host.plane.machine.kv, SigningKey)]
    assert all(use in purposes for use in USES)
    assert place.ask("tend").output.strip() == "nothing is due"
    again = place.ask("rotate", "--use", USES[0], "--json")
    assert json.loads(again.output)["epoch"] == 2
    states = [row["state"] for row in place.rows() if row["use"] == USES[0]]
    assert states == ["DecryptOnly", "Active"]
    old = scan(place.host.plane.machine.kv, SigningKey, USES[0])
    assert [each.retires_at is None for each in old if each.key_id.startswith("office")] == [
        False,
        True,
    ]


def test_a_signed_override_is_what_the_control_plane_takes(place: Place, tmp_path: Path) -> None:
    assert place.ask("rotate", "--use", "CPReleaseKey").exit_code == 0
    content = {
        "override_id": "o1",
        "scope": "Credit",
        "partitions": [],
        "ticket_url": "https://tickets/1",
        "justification": "a drill",
        "expires_at": place.host.plane.now_ms + 60_000,
    }
    file, signature = tmp_path / "content.json", tmp_path / "signature.json"
    file.write_text(json.dumps(content))
    signed = place.run("sign", "override", str(file))
    assert signed.exit_code == 0, signed.output
    signature.write_text(signed.output)
    place.host.plane.done(
        IssueBreakGlass(
            token_id="mine",
            scope=OverrideScope.CREDIT,
            actor_id=OPERATOR,
            ticket_url="https://tickets/1",
            ttl_ms=300_000,
        )
    )
    given = ["overrides", "record", "--override-id", "o1", "--scope", "Credit"]
    given += ["--ticket-url", "https://tickets/1", "--justification", "a drill"]
    given += ["--expires-at", str(content["expires_at"]), "--signature", f"@{signature}"]
    given += ["--break-glass", "mine", "--admin", str(place.address)]
    told = CliRunner().invoke(admin.app, given)
    assert told.exit_code == 0, told.output
    file.write_text("{}")
    assert place.run("sign", "override", str(file)).exit_code == 2


def test_break_glass_certificates_come_from_their_own_authority(
    place: Place, tmp_path: Path
) -> None:
    assert place.ask("rotate", "--use", "BreakGlassTokenCA").exit_code == 0
    given = ["break-glass", "certificate", "Quarantine", "spiffe://prod/operator/eve"]
    given += ["--ticket", "https://tickets/7", "--out", str(tmp_path / "glass.pem")]
    told = place.ask(*given, app=admin.app)
    assert told.exit_code == 0, told.output
    leaf = load_certificates(tmp_path / "glass.pem")[0]
    for node in (1, 2):
        known = load_certificates(place.data / f"node-{node}" / "pki" / GLASS_FILE)
        leaf.verify_directly_issued_by(known[0])
    purpose = KeyPurpose.BREAK_GLASS_CA.value
    assert len(list(scan(place.host.plane.machine.kv, SigningKey, purpose))) == 1


def test_what_the_control_plane_did_not_hear_is_finished_later(place: Place) -> None:
    place.host.reachable = False
    assert place.ask("rotate", "--use", "CPReleaseKey").exit_code == 12
    assert [row["state"] for row in place.rows()] in ([], ["Staged"])
    place.host.reachable = True
    assert place.ask("tend").exit_code == 0
    assert [row["state"] for row in place.rows()] == ["Active"]


def test_a_signed_release_is_what_nodes_verify(place: Place) -> None:
    assert place.run("sign-release").exit_code == 4
    assert place.ask("rotate", "--use", "ReleaseAutomationKey").exit_code == 0
    told = place.run("sign-release", "--json")
    assert told.exit_code == 0, told.output
    for node in (1, 2):
        pki = place.data / f"node-{node}" / "pki"
        assert check_release(pki) == json.loads(told.output)["version"]


def test_who_keeps_nodes_running_has_their_keys_tended(place: Place) -> None:
    cluster = read_cluster_file(place.data / CLUSTER_FILE)
    keeping = Supervisor(place.data, cluster, restart=False)
    keeping._running = {1: cast("Any", None)}

    def tending() -> Any:
        keeping._tend_at = 0.0
        keeping._tend_keys()
        return keeping._tending

    assert tending() is None  # nobody ever made such a key
    assert place.ask("rotate", "--use", "CPReleaseKey").exit_code == 0
    assert tending().wait(120) == 12  # the node that it asks is none of this test
    assert "Traceback" not in (place.data / "keys.log").read_text()
