"""`quantum cert`: renewal and revocation in files, with exit codes and an audit line for each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from typer.testing import CliRunner

from clustor.runtime.development import node_directory, prepare_cluster
from clustor.runtime.pki import (
    CERTIFICATE_FILE,
    REVOCATION_FILE,
    ClusterId,
    NodeId,
    client_context,
    load_certificate,
    own_identity,
    utc_now,
)
from clustor.runtime.revocation import read_revocations
from quantum.cli import audit, cert
from quantum.edge.tls_development import pki_directory, prepare_server


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


def test_certificates_before_the_first_start_do_not_stop_it(tmp_path: Path) -> None:
    assert run("issue", "lamp", "--data", tmp_path / "new")[0] == 0
    prepare_cluster(
        tmp_path / "new", ClusterId("dev"), nodes=1, base_port=7000, groups=1, now=utc_now()
    )
