"""`quantum cert`: renewal and revocation in files, with exit codes and an audit line for each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from typer.testing import CliRunner

from clustor.runtime.development import node_directory, prepare_cluster
from clustor.runtime.pki.certificate_files import load_certificate, load_certificates
from clustor.runtime.pki.identity import (
    CERTIFICATE_FILE,
    REVOCATION_FILE,
    ClusterId,
    NodeId,
    client_context,
    own_identity,
    utc_now,
)
from clustor.runtime.pki.revocation import read_revocations
from quantum.cli import audit, cert
from quantum.edge.tls_development import pki_directory, prepare_server
from quantum.node.listening import note_listening


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    prepare_cluster(data, ClusterId("dev"), nodes=3, base_port=7000, groups=1, now=utc_now())
    prepare_server(data, utc_now(), frozenset({"acme.example"}))
    return data


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(cert.app, [str(each) for each in arguments])
    return result.exit_code, result.output


def told(data: Path) -> list[str]:
    shown = CliRunner().invoke(audit.app, ["show", str(data), "--json"]).output.splitlines()
    return [json.loads(line)["what"] for line in shown]


def serial(data: Path, node: int) -> int:
    pki = node_directory(data, NodeId(node)) / "pki"
    return load_certificate(pki / CERTIFICATE_FILE).serial_number


def test_rotate_renews_all_or_the_named(data: Path) -> None:
    before = [serial(data, node) for node in (1, 2, 3)]
    code, output = run("rotate", "--data", data, "--node", 2, "--no-listener", "--json")
    assert code == 0 and list(json.loads(output)["not_after"]) == ["node 2"]
    assert [serial(data, node) == old for node, old in zip((1, 2, 3), before, strict=True)] == [
        True, False, True,
    ]  # fmt: skip
    server = load_certificate(pki_directory(data) / "server.pem")
    code, output = run("rotate", "--data", data)
    assert code == 0 and "listener: valid to" in output
    renewed = load_certificate(pki_directory(data) / "server.pem")
    assert renewed.serial_number != server.serial_number
    assert b"acme.example" in renewed.public_bytes(Encoding.DER)
    for node in (1, 2, 3):
        pki = node_directory(data, NodeId(node)) / "pki"
        assert own_identity(pki).node_id == node
        client_context(pki)  # the key fits
    assert told(data) == ["CertificateRotated", "CertificateRotated"]


def test_revoke_a_client_and_a_node(data: Path) -> None:
    assert run("issue", "lamp", "--data", data)[0] == 0
    code, output = run("revoke", "lamp", "--data", data, "--json")
    assert code == 0
    number = int(json.loads(output)["serial"], 16)
    authority = load_certificate(pki_directory(data) / "ca.pem")
    assert list(read_revocations(pki_directory(data) / REVOCATION_FILE, authority)) == [number]
    code, output = run("revoke", "--node", 3, "--data", data)
    assert code == 0 and "revoked node 3" in output
    for node in (1, 2, 3):
        pki = node_directory(data, NodeId(node)) / "pki"
        found = read_revocations(pki / REVOCATION_FILE, load_certificate(pki / "ca.pem"))
        assert list(found) == [serial(data, 3)]
    assert told(data) == ["CertificateIssued", "CertificateRevoked", "CertificateRevoked"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("revoke", "nobody"), 9),
        (("revoke", "../../etc"), 9),
        (("revoke",), 2),
        (("revoke", "lamp", "--node", "1"), 2),
        (("revoke", "--node", "9"), 9),
        (("rotate", "--node", "9"), 3),
    ],
)
def test_what_cannot_be_is_one_sentence_and_a_code(
    data: Path, arguments: tuple[str, ...], expected: int
) -> None:
    code, output = run(*arguments, "--data", data)
    assert code == expected, output
    assert output.startswith("quantum: ") and output.count("\n") == 1


def test_a_certificate_of_another_authority_is_not_revoked(data: Path, tmp_path: Path) -> None:
    pki = node_directory(data, NodeId(1)) / "pki"
    code, output = run("revoke", "lamp", "--data", data, "--file", pki / CERTIFICATE_FILE)
    assert code == 9 and "another authority" in output
    assert run("rotate", "--data", tmp_path / "nothing")[0] == 3


def test_a_wrong_directory_gets_no_authority_of_its_own(tmp_path: Path) -> None:
    code, output = run("issue", "lamp", "--data", tmp_path / "wrong")
    assert code == 3
    assert "there is no broker in" in output and "--new" in output
    assert not (tmp_path / "wrong").exists()


def test_the_line_to_try_names_the_port_where_the_broker_listens(data: Path) -> None:
    assert "localhost -p 7013 " in run("issue", "lamp", "--data", data)[1]
    note_listening(data, {"mqtt": "127.0.0.1:1883", "mqtts": "0.0.0.0:18883"})
    shown = run("issue", "lamp", "--data", data)[1]
    assert "localhost -p 18883 " in shown and "pub --port 18883 " in shown


def test_certificates_before_the_first_start_do_not_stop_it(tmp_path: Path) -> None:
    assert run("issue", "lamp", "--data", tmp_path / "new", "--new")[0] == 0
    prepare_cluster(
        tmp_path / "new", ClusterId("dev"), nodes=1, base_port=7000, groups=1, now=utc_now()
    )


def authority_names(data: Path) -> list[str]:
    code, output = run("rollover", "status", "--data", data, "--json")
    assert code == 0, output
    found = json.loads(output)
    return [f"{whose} {each['phase']} {len(each['trusted'])}" for whose, each in found.items()]


def test_a_rollover_goes_step_by_step_and_each_step_can_be_given_again(data: Path) -> None:
    assert run("issue", "lamp", "--data", data)[0] == 0
    assert run("revoke", "--node", 3, "--data", data)[0] == 0
    assert authority_names(data) == ["nodes None 1", "clients None 1"]
    code, output = run("rollover", "switch", "--data", data, "--force")
    assert code == 9 and "no rollover was begun" in output
    for _ in range(2):
        code, output = run("rollover", "begin", "--data", data)
        assert code == 0 and "next: quantum cert rollover switch" in output
        assert authority_names(data) == ["nodes Begun 2", "clients Begun 2"]
    code, output = run("rollover", "finish", "--data", data)
    assert code == 9 and "switch first" in output
    for _ in range(2):
        code, output = run("rollover", "switch", "--data", data, "--force")
        assert code == 0 and "of another than the one that signs: lamp" in output
        assert authority_names(data) == ["nodes Switched 2", "clients Switched 2"]
    code, output = run("rollover", "begin", "--data", data)
    assert code == 9 and "finish that first" in output
    for node in (1, 2):  # each is believed by the others, whichever authority they stand on
        pki = node_directory(data, NodeId(node)) / "pki"
        client_context(pki)
        assert len(load_certificates(pki / "ca.pem")) == 2
        assert (
            load_certificate(pki / CERTIFICATE_FILE).issuer
            != load_certificates(pki / "ca.pem")[1].subject
        )
    assert run("revoke", "lamp", "--data", data)[0] == 0  # the old authority still has its list
    code, output = run("rollover", "finish", "--data", data)
    assert code == 1 and "still of the old authority: lamp" in output
    assert run("issue", "lamp", "--data", data)[0] == 0
    assert run("rollover", "finish", "--data", data)[0] == 0
    assert authority_names(data) == ["nodes None 1", "clients None 1"]
    pki = node_directory(data, NodeId(1)) / "pki"
    assert len(load_certificates(pki / "ca.pem")) == 1
    assert not list(data.glob("pki/**/ca-*"))
    assert [what for what in told(data) if "uthority" in what] == [
        *["AuthorityRolloverBegun"] * 4,
        *["AuthoritySwitched"] * 4,
        *["AuthorityRolloverFinished"] * 2,
    ]


def test_a_switch_that_was_interrupted_is_noticed_and_given_again(data: Path) -> None:
    assert run("rollover", "begin", "--data", data)[0] == 0
    pki = pki_directory(data)
    next_key = (pki / "ca-next.key").read_bytes()
    for name in ("pem", "key"):
        (pki / f"ca-old.{name}").write_bytes((pki / f"ca.{name}").read_bytes())
    (pki / "ca.key").write_bytes(next_key)  # and then the power went
    code, output = run("issue", "lamp", "--data", data)
    assert code == 9 and "was a rollover interrupted?" in output
    assert run("rollover", "switch", "--data", data, "--force")[0] == 0
    assert run("issue", "lamp", "--data", data)[0] == 0
    assert authority_names(data) == ["nodes Switched 2", "clients Switched 2"]


def test_a_rollover_needs_a_cluster(tmp_path: Path) -> None:
    code, output = run("rollover", "begin", "--data", tmp_path)
    assert code == 3 and "no cluster in" in output
    code, output = run("rollover", "begin", "--data", tmp_path, "--of", "clients")
    assert code == 9 and "cannot read a certificate" in output
