"""As whom a command speaks, and what it says when the other end speaks otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from clustor.runtime.admin.caller import (
    NOBODY,
    Credentials,
    CredentialsUnusable,
    beside_data,
    credentials_for,
)
from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file
from clustor.runtime.development import prepare_cluster
from clustor.runtime.peers.transport import Address
from clustor.runtime.pki.identity import AUTHORITY_FILE, cluster_id, create_authority, utc_now
from quantum.cli import admin, broker, cluster, credentials, kv, members, scrub, tenants, why
from quantum.cli.app import build
from quantum.cli.commands import COMMANDS
from tests.clustor.control.plane import OPERATOR, settled_plane
from tests.clustor.runtime.waiting import free_base_port
from tests.quantum.admin.host import Host
from tests.quantum.admin.serving import served

CLUSTER = cluster_id("dev")


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("QUANTUM_CERT", "QUANTUM_KEY", "QUANTUM_CA", "QUANTUM_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    credentials.speak_as(NOBODY)


@pytest.fixture
def plain() -> Iterator[Address]:
    with served(Host(settled_plane()), development=OPERATOR) as (address, _):
        yield address


def single(command: Callable[..., None]) -> typer.Typer:
    tree = typer.Typer()
    tree.command()(command)
    return tree


ASKING: dict[str, tuple[typer.Typer, list[str]]] = {
    "status": (single(broker.status), ["--admin"]),
    "sessions": (single(broker.sessions), ["--admin"]),
    "topics": (single(broker.topics), ["--admin"]),
    "retained": (single(broker.retained), ["--admin"]),
    "session kick": (broker.session_app, ["kick", "lamp", "--admin"]),
    "session show": (broker.session_app, ["show", "lamp", "--admin"]),
    "why": (single(why.why), ["lamp", "--admin"]),
    "scrub": (single(scrub.scrub), ["--admin"]),
    "tenants show": (tenants.app, ["show", "acme", "--admin"]),
    "cluster status": (cluster.app, ["status", "--admin"]),
    "cluster members": (single(members.members), ["--admin"]),
    "admin nodes list": (admin.app, ["nodes", "list", "--admin"]),
    "admin roles bind": (admin.app, ["roles", "bind", "spiffe://a/b", "Operator", "--admin"]),
    "kv get": (kv.app, ["get", "colour", "--timeout", "0.5", "--cluster"]),
}


@pytest.mark.parametrize("name", ASKING)
def test_who_speaks_tls_to_a_plain_door_is_told_so(
    name: str, plain: Address, tmp_path: Path
) -> None:
    create_authority(tmp_path / "pki", CLUSTER, utc_now())
    tree, arguments = ASKING[name]
    given = [*arguments, str(plain), "--ca", str(tmp_path / "pki" / AUTHORITY_FILE)]
    result = CliRunner().invoke(tree, given)
    assert result.exit_code == 9, result.output
    assert "speaks plaintext (development): leave --cert and --ca out" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("name", ASKING)
def test_nobody_there_is_another_sentence(name: str) -> None:
    tree, arguments = ASKING[name]
    result = CliRunner().invoke(tree, [*arguments, f"127.0.0.1:{free_base_port(1)}"])
    assert result.exit_code == 12, result.output


def prepared(data: Path, *, admin_tls: bool) -> Address:
    made = prepare_cluster(
        data, CLUSTER, nodes=1, base_port=free_base_port(1), groups=1, now=utc_now()
    )
    changed = msgspec.structs.replace(made, admin_tls=admin_tls)
    (data / CLUSTER_FILE).write_bytes(encode_cluster_file(changed))
    return changed.nodes[0].admin


def test_files_beside_the_data_are_for_that_cluster_alone(tmp_path: Path) -> None:
    data = tmp_path / "var"
    address = prepared(data, admin_tls=True)
    pki = data / "pki"
    assert beside_data(address, data) == Credentials(None, None, pki / AUTHORITY_FILE)
    (pki / "operator-ada.pem").touch()
    ada = Credentials(pki / "operator-ada.pem", None, pki / AUTHORITY_FILE)
    assert beside_data(address, data) == ada
    assert credentials_for(address, NOBODY).certificate == Path(
        "var/pki/operator-ada.pem"
    )  # ./var is where a broker is by default
    assert beside_data(Address("127.0.0.1", 1), data) == NOBODY
    assert beside_data(address, tmp_path / "elsewhere") == NOBODY
    (pki / "operator-bob.pem").touch()
    with pytest.raises(CredentialsUnusable, match="more than one certificate"):
        beside_data(address, data)


def test_a_plaintext_cluster_needs_no_files(tmp_path: Path) -> None:
    data = tmp_path / "var"
    address = prepared(data, admin_tls=False)
    assert credentials_for(address, NOBODY) == NOBODY


def test_options_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    address = Address("127.0.0.1", 1)
    monkeypatch.setenv("QUANTUM_CERT", "env.pem")
    monkeypatch.setenv("QUANTUM_CA", "env-ca.pem")
    found = credentials_for(address, NOBODY)
    assert found == Credentials(Path("env.pem"), None, Path("env-ca.pem"))
    given = Credentials(Path("mine.pem"), None, Path("ca.pem"))
    assert credentials_for(address, given) == given


def test_every_command_that_takes_an_admin_address_takes_credentials() -> None:
    """A new command that asks a node must be able to ask under TLS."""
    tree = typer.main.get_command(build(set(COMMANDS) - {"lake"}))
    missing = list(_without_credentials(tree, ()))
    assert missing == []


def _without_credentials(command: object, path: tuple[str, ...]) -> Iterator[str]:
    for name, below in getattr(command, "commands", {}).items():
        yield from _without_credentials(below, (*path, name))
    flags = {flag for each in getattr(command, "params", ()) for flag in each.opts}
    asks = "--admin" in flags or path[:1] == ("kv",)
    listens = path == ("up",)  # there it is where to listen
    if asks and not listens and "--cert" not in flags and not getattr(command, "commands", {}):
        yield " ".join(path)
