"""`quantum admin` and `quantum config explain`: each command against a real admin port."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from typer.main import get_command
from typer.testing import CliRunner, Result

from clustor.runtime.development import prepare_cluster
from clustor.runtime.pki.identity import cluster_id, utc_now
from quantum.admin import ROUTES
from quantum.admin.identity import peer_of
from quantum.cli import admin as command
from quantum.cli.config import app as config_app
from quantum.cli.exits import Exit
from quantum.cli.naming import own_command
from tests.clustor.control.plane import OPERATOR, settled_plane
from tests.quantum.admin.host import Host
from tests.quantum.admin.serving import served

SAID = [route for route in ROUTES if route.command_line]
DIGEST = base64.b64encode(bytes(32)).decode()
FILES: dict[str, Any] = {
    "roots.json": ["-----BEGIN CERTIFICATE-----"],
    "proofs.json": [],
    "rows.json": [],
    "signature.json": {"key_id": "r1", "signature": base64.b64encode(bytes(64)).decode()},
    "evidence.json": [],
    "bindings.json": [{"identity": OPERATOR, "role": "Operator"}],
}
# What an example names by a placeholder cannot be right; all else must reach the log's decision.
PLACEHOLDERS = {"proofs publish"}


class Terminal:
    """A command line that asks one broker."""

    def __init__(self, host: Host, admin: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = host
        self.admin = admin
        monkeypatch.setenv("QUANTUM_ADMIN", admin)
        monkeypatch.setenv("COLUMNS", "200")

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(command.app, list(arguments))

    def done(self, *arguments: str) -> dict[str, Any]:
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = json.loads(result.stdout)
        return found


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    host = Host(settled_plane())
    with served(host, development=OPERATOR) as (address, _):
        yield Terminal(host, str(address), monkeypatch)


def test_every_page_has_a_command_that_teaches_by_an_example(terminal: Terminal) -> None:
    nouns = {route.command_line.split()[0] for route in SAID}
    assert nouns == set(command.NOUNS)
    tree: Any = get_command(command.app)
    for route in SAID:
        noun, verb = route.command_line.split()
        taught = tree.commands[noun].commands[verb].help
        assert f"Example: {own_command()} admin {route.command_line}" in taught
        assert f"{route.method} {route.path}" in taught
    result = terminal.run("tenants", "set-quotas", "--help")
    assert result.exit_code == 0, result.output
    assert "--quotas" in result.output


@pytest.mark.parametrize("route", SAID, ids=lambda route: route.command_line.replace(" ", "-"))
def test_the_example_of_a_command_works_as_far_as_the_cluster_allows(
    route: Any, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_text(json.dumps(content))
    typed = shlex.split(route.example.replace("BASE64", DIGEST))
    result = terminal.run(*route.command_line.split(), *typed)
    if route.command_line in PLACEHOLDERS:
        assert result.exit_code == Exit.USAGE
        return
    assert "BadRequest" not in result.output, result.output
    assert result.exit_code == 0 or "next: " in result.output, "it never reached the node"


def test_a_tenant_from_its_creation_to_its_end(terminal: Terminal) -> None:
    terminal.done("tenants", "create", "--tenant-id", "acme", "--sni", "acme.example.com")
    for value in (5, 6):  # the second time another version stands: it is read first
        quotas = json.dumps({"connections_max": value})
        terminal.done("tenants", "set-quotas", "acme", "--quotas", quotas)
    shown = terminal.done("tenants", "show", "acme")
    assert (shown["quotas"]["connections_max"], shown["quotas"]["version"]) == ("6", "2")
    told = terminal.done("tenants", "set-quotas", "acme", "--quotas", '{"shared_groups_max": 10}')
    said = told["result"]["takes_effect"]
    assert said == {"shared_groups_max": "live; up to 15 for 24 h, then no more (overage_grace_ms)"}
    shown = terminal.done("tenants", "quotas", "acme")
    assert (shown["connections_max"], shown["shared_groups_max"]) == ("6", "10")
    named = '{"overage_grace_ms": 0}'
    terminal.done("tenants", "set-quotas", "acme", "--replace", "--quotas", named)
    shown = terminal.done("tenants", "quotas", "acme")
    assert (shown["connections_max"], shown["overage_grace_ms"]) == ("1048576", "0")
    rules = json.dumps([{"effect": "Allow", "action": "Any", "filter": "plant/#"}])
    terminal.done("tenants", "set-acls", "acme", "--rules", rules)
    assert terminal.done("tenants", "acls", "acme")["rules"][0]["filter"] == "plant/#"
    listed = terminal.done("tenants", "list")
    assert [row["tenant_id"] for row in listed["items"]] == ["a", "acme"]
    assert terminal.done("tenants", "delete", "acme")["result"] == {}
    assert terminal.run("tenants", "show", "acme").exit_code == Exit.NOT_FOUND


def test_tables_are_for_people(terminal: Terminal) -> None:
    result = terminal.run("nodes", "list", "--limit", "2")
    assert "node1:7000" in result.output
    assert "there are more: --after" in result.output
    result = terminal.run("audit", "list")
    assert "1970-01-01 00:16:40" in result.output
    result = terminal.run("nodes", "drain", "4", "--draining")
    assert "done at revision" in result.output
    assert "Draining" in result.output
    result = terminal.run("nodes", "show", "4")
    assert "zone" in result.output


def test_placements_and_durability_find_their_epochs(terminal: Terminal) -> None:
    placed = ("groups", "place", "2", "--members", '{"voters": [1, 2, 3]}', "--load", "5")
    assert terminal.done(*placed)["result"]["survivable"] is True
    assert terminal.run("groups", "retire", "2").exit_code == 0
    again = terminal.run("groups", "set-durability", "1", "--mode", "Group-Fsync")
    assert again.exit_code == Exit.CONFLICT  # partition 1 has no tenant that may
    assert "ModeConflict" in again.output


def test_configuration_is_set_rolled_back_and_explained(terminal: Terminal) -> None:
    for value in ("1", "2"):
        document = json.dumps({"flow.credit": int(value)})
        terminal.done("config", "set", "--scope", "Tenant/a", "--document", document)
    terminal.done("config", "rollback", "--to", "1", "--scope", "Tenant", "--name", "a")
    found = terminal.done("config", "explain", "--key", "flow.credit", "--tenant", "a")
    assert (found["value"], found["version"], found["set_by"]) == (1, "3", OPERATOR)
    result = CliRunner().invoke(config_app, ["explain", "flow.credit", "--tenant", "a", "--json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert (said["value"], said["source"]) == (1, "Tenant a version 3")
    assert said["set_by"] == OPERATOR
    assert said["set_at"].startswith("1970-01-01 00:16:40")


def test_explain_names_every_layer_and_the_one_in_force(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('queue_bytes_max = "32 MiB"\n')
    monkeypatch.setenv("QUANTUM_QUEUE_BYTES_MAX", "16 MiB")
    flags = ["explain", "queue-bytes-max", "--config", str(file), "--json"]
    said: dict[str, Any] = {}
    for more, value, layer in (
        ([], "16 MiB", "environment"),
        (["--flag", "1 MiB"], "1 MiB", "flag"),
    ):
        result = CliRunner().invoke(config_app, [*flags, *more])
        assert result.exit_code == 0, result.output
        said = json.loads(result.stdout)
        assert (said["value"], said["layer"]) == (value, layer)
    assert [each["layer"] for each in said["layers"]] == ["default", "file", "environment", "flag"]
    assert said["layers"][1]["set_by"] not in ("", "-")
    result = CliRunner().invoke(config_app, ["explain", "nothing"])
    assert result.exit_code == Exit.NOT_FOUND
    result = CliRunner().invoke(config_app, ["explain", "mqtt", "--flag", "0.0.0.0:1883"])
    assert result.exit_code == Exit.USAGE


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    {
        "a refusal": (("tenants", "show", "nobody"), Exit.NOT_FOUND, "next: list what there is"),
        "a conflict": (("nodes", "remove", "1"), Exit.CONFLICT, "InUse: move its partitions"),
        "not JSON": (
            ("tenants", "set-quotas", "a", "--quotas", "{"),
            Exit.USAGE,
            "--quotas is not JSON",
        ),
        "no such file": (
            ("tenants", "set-quotas", "a", "--quotas", "@nowhere"),
            Exit.USAGE,
            "cannot read nowhere",
        ),
        "a scope of none": (
            ("config", "set", "--scope", "Planet", "--document", "{}"),
            Exit.USAGE,
            "--scope is one of",
        ),
        "an address of none": (("nodes", "list", "--admin", "x"), Exit.USAGE, "not an address"),
        "nobody there": (
            ("nodes", "list", "--admin", "127.0.0.1:1"),
            Exit.UNREACHABLE,
            "start a broker",
        ),
        "no such certificate": (
            ("nodes", "list", "--cert", "nowhere.pem"),
            Exit.CERTIFICATE,
            "cannot use these credentials",
        ),
    }.values(),
)
def test_what_goes_wrong_is_one_sentence_and_a_code(
    terminal: Terminal, arguments: tuple[str, ...], code: Exit, says: str
) -> None:
    result = terminal.run(*arguments)
    assert result.exit_code == code, result.output
    assert says in result.output
    assert "Traceback" not in result.output


def test_a_call_is_repeated_under_its_key(terminal: Terminal) -> None:
    drain = ("nodes", "drain", "4", "--draining", "--idempotency-key", "mine")
    assert terminal.done(*drain) == terminal.done(*drain)
    other = terminal.run("nodes", "drain", "3", "--draining", "--idempotency-key", "mine")
    assert (other.exit_code, "RequestIdReused" in other.output) == (Exit.CONFLICT, True)


def test_people_are_bound_and_unbound_without_the_others(terminal: Terminal) -> None:
    ada = "spiffe://test/operator/ada"
    terminal.done("roles", "bind", ada, "Operator")
    terminal.done("roles", "bind", ada, "TenantAdmin", "--tenant", "a")
    terminal.done("roles", "bind", ada, "Operator")  # again: it is there once
    held = terminal.done("roles", "show")["bindings"]
    assert [each["role"] for each in held if each["identity"] == ada] == ["TenantAdmin", "Operator"]
    assert len(held) == 5
    terminal.done("roles", "unbind", ada, "Operator")
    terminal.done("roles", "unbind", ada)
    assert len(terminal.done("roles", "show")["bindings"]) == 3
    last = terminal.run("roles", "unbind", OPERATOR)
    assert (last.exit_code, "no Operator" in last.output) == (Exit.USAGE, True)


def test_a_certificate_names_somebody_and_no_node(terminal: Terminal, tmp_path: Path) -> None:
    root = tmp_path / "var"
    prepare_cluster(root, cluster_id("dev"), nodes=1, base_port=20_000, groups=1, now=utc_now())
    found = terminal.done("certificate", "operator/ada", "--data", str(root))
    assert found["identity"] == "spiffe://dev/operator/ada"
    file = Path(found["certificate"])
    assert file.stat().st_mode & 0o777 == 0o600
    der = x509.load_pem_x509_certificate(file.read_bytes()).public_bytes(Encoding.DER)
    peer = peer_of(der)
    assert peer is not None and peer.identity == found["identity"]
    for name in ("node/1", "../x", "Ada"):
        refused = terminal.run("certificate", name, "--data", str(root))
        assert refused.exit_code == Exit.CERTIFICATE, name
    nowhere = terminal.run("certificate", "operator", "--data", str(tmp_path / "nowhere"))
    assert nowhere.exit_code == Exit.NOT_FOUND


def test_the_document_is_printed_without_a_node(terminal: Terminal) -> None:
    printed = CliRunner().invoke(command.app, ["openapi"])
    assert json.loads(printed.stdout)["openapi"] == "3.1.0"
