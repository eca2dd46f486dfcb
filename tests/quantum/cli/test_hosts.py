"""`quantum cluster init` and `quantum config check`: folders, and what is wrong with one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID
from typer.testing import CliRunner

from clustor.runtime.cluster_file import read_cluster_file
from clustor.runtime.pki.identity import (
    ClusterId,
    DevelopmentAuthority,
    new_authority,
    own_identity,
    sign_key,
    utc_now,
)
from quantum.cli.cluster import app as cluster_app
from quantum.cli.config import app as config_app

HOSTS = "a=10.9.0.1,b=10.9.0.2,c=10.9.0.3"


def init(out: Path, *more: str, hosts: str = HOSTS, code: int = 0) -> str:
    result = CliRunner().invoke(
        cluster_app, ["init", "--hosts", hosts, "--out", str(out), "--data", "data", *more]
    )
    assert result.exit_code == code, result.output
    return result.output


def check(folder: Path) -> tuple[int, list[str]]:
    file = folder / "quantum.toml"
    result = CliRunner().invoke(config_app, ["check", str(file), "--json"])
    return result.exit_code, [each["key"] for each in json.loads(result.output)["findings"]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("init") / "prod"
    init(out)
    return out


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Return a copy of a host's folder, to be spoilt."""
    shutil.copytree(made / "a", tmp_path / "a")
    return tmp_path / "a"


def test_each_host_gets_a_folder_of_its_own_and_no_authority_s_key(made: Path) -> None:
    assert sorted(each.name for each in made.iterdir()) == ["a", "b", "c", "operator"]
    for number, name in enumerate("abc", 1):
        assert check(made / name) == (0, [])
        assert own_identity(made / name / "pki").node_id == number
        assert not list((made / name).rglob("ca.key"))
    secrets = [each for each in made.rglob("*") if each.suffix in (".key", ".wrapped")]
    assert secrets and all(each.stat().st_mode & 0o077 == 0 for each in secrets)
    cluster = read_cluster_file(made / "operator" / "cluster.json")
    assert cluster.production and cluster.admin_tls and not cluster.disk_override
    assert [entry.zone for entry in cluster.nodes] == ["a", "b", "c"]
    assert cluster.nodes[1].clients == {"mqtts": "10.9.0.2:8883", "wss": "10.9.0.2:8084"}


@pytest.mark.parametrize(
    "hosts",
    ["a", "a=", "a=1.2.3.4,a=1.2.3.5", "a=1.2.3.4,b=1.2.3.4", "operator=1.2.3.4", "A=b", ""],
)
def test_hosts_that_are_none_make_nothing(tmp_path: Path, hosts: str) -> None:
    init(tmp_path / "out", hosts=hosts, code=2)
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_over(made: Path) -> None:
    before = (made / "a" / "kek.key").read_bytes()
    init(made, code=3)
    assert (made / "a" / "kek.key").read_bytes() == before


@pytest.mark.parametrize(
    ("spoil", "key"),
    [
        ("rm pki/node.pem", "pki"),
        ("rm client-pki/server.key", "client_pki"),
        ("rm kek.key", "kek"),
        ("echo 00 > kek.key", "kek"),
        ("chmod 644 kek.key", "kek"),
        ("rm -r join", "join"),
        ("sed -i s/node.=.1/node\\ =\\ 2/ quantum.toml", "pki"),
        ("sed -i s/10.9.0.1/10.9.0.9/ quantum.toml", "join"),
        ("echo 'client_auth = \"none\"' >> quantum.toml", "client_auth"),
        ("echo 'keys = \"data/keys\"' >> quantum.toml", "keys"),
        ("echo 'archive = \"nowhere://x\"' >> quantum.toml", "archive"),
        ("echo 'advertise = \"mqtts=mqtt.example:8883\"' >> quantum.toml", "client_pki"),
    ],
)
def test_what_is_wrong_with_a_folder_is_found(folder: Path, spoil: str, key: str) -> None:
    subprocess.run(spoil, shell=True, cwd=folder, check=True)
    code, keys = check(folder)
    assert code == 1
    assert key in keys


def test_keys_beside_the_data_do_not_start(folder: Path) -> None:
    with (folder / "quantum.toml").open("a") as file:
        file.write('keys = "data/keys"\n')
    done = subprocess.run(
        [sys.executable, "-m", "quantum.cli", "node", "start", "--config", "quantum.toml"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3
    assert "beside the data" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_authority_of_one_s_own_signs_the_requests(tmp_path: Path) -> None:
    out = tmp_path / "prod"
    init(out, "--own-ca")
    assert not list(out.rglob("*.pem")) and not list(out.rglob("ca.key"))
    authority = new_authority(ClusterId("prod"), utc_now(), 1)
    for request in out.rglob("*.csr"):
        _sign(authority, request)
    assert own_identity(out / "b" / "pki").node_id == 2
    assert check(out / "b") == (0, [])


def _sign(authority: DevelopmentAuthority, request: Path) -> None:
    """Be the operator's own authority."""
    asked = x509.load_pem_x509_csr(request.read_bytes())
    names = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    key = asked.public_key()
    certificate = sign_key(
        authority,
        key,  # type: ignore[arg-type]  # the requests hold EC keys
        "signed elsewhere",
        list(names),
        usages,
        now=utc_now(),
        lifetime=timedelta(days=30),
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    request.with_suffix(".pem").write_bytes(pem)
    request.with_name("ca.pem").write_bytes(authority.bundle_pem)


def test_two_files_are_compared_by_what_takes_effect(made: Path, tmp_path: Path) -> None:
    one, other = made / "a" / "quantum.toml", tmp_path / "quantum.toml"
    other.write_text(one.read_text() + 'connections_max = 7\nclient_auth = "required"\n')
    result = CliRunner().invoke(config_app, ["diff", str(one), str(other), "--json"])
    found = json.loads(result.output)
    assert result.exit_code == 1
    assert found["connections_max"] == ["100000", "7"]
    assert "client_auth" not in found and "mqtts" not in found
    same = CliRunner().invoke(config_app, ["diff", str(one), str(one)])
    assert (same.exit_code, same.output) == (0, "")
