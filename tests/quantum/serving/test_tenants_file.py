"""`tenants.toml` and `broker.json`: what may change, what may only be added, and every mistake."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from clustor.runtime.errors import DataDirectoryRefused
from quantum.node.listeners import Door, Doors, Listeners, tenant_doors
from quantum.node.server_certificates import DevelopmentCertificates
from quantum.tenancy import AclRefusal, InvalidTenants, Principal, RateLimit, describe_tenants
from quantum.tenants.broker_file import BROKER_FILE, TenantEntry, prepare_broker, read_broker_file
from quantum.tenants.policy import TenantsFile
from tests.quantum.serving.client import connect
from tests.quantum.serving.tenant_lab import TenantLab

DEV = TenantEntry("dev", 3)
WHOLE = """
[tenants.acme]
prgs = 2
server_names = ["Acme.example", "acme.localhost"]
mqtt = "127.0.0.1:1884"
acl_refusal = "disconnect"

[[tenants.acme.acl]]
effect = "allow"
pattern = "sensors/%c/#"
principals = ["boss"]

[tenants.acme.quotas]
connections = 10
offline_messages_per_session = 20

[tenants.acme.rates]
publishes = { per_second = 100, burst = 200 }

[tenants.acme.connection_rates]
publish_bytes = { per_second = 1000 }

[tenants.empty]
"""


def test_everything_that_can_be_said(tmp_path: Path) -> None:
    (tmp_path / "tenants.toml").write_text(WHOLE)
    found = TenantsFile(tmp_path).read()
    acme = found["acme"]
    assert acme.server_names == {"acme.example", "acme.localhost"}
    assert acme.policy.acl_refusal is AclRefusal.DISCONNECT
    assert acme.policy.quotas.connections == 10
    assert acme.policy.rates.publishes == RateLimit(100, 200)
    assert acme.connection_rates.publish_bytes == RateLimit(1000, 1000)
    assert acme.acl is not None and acme.acl.rules[0].principals == frozenset({Principal("boss")})
    assert found["empty"].acl is None and found["empty"].mqtt is None


MISTAKES = {
    "not TOML": ("tenants = [", "cannot read the tenants' description"),
    "a field": ("[tenants.a]\ncolour = 1", "tenant 'a': Object contains unknown field `colour`"),
    "a name": ('[tenants."A/b"]', "tenant 'A/b': a name is 1 to 63 of a-z, 0-9 and dashes"),
    "partitions": ("[tenants.a]\nprgs = 0", "tenant 'a': prgs must be from 1 to 512"),
    "a refusal": ('[tenants.a]\nacl_refusal = "shout"', "tenant 'a': Invalid enum value 'shout'"),
    "a pattern": (
        '[[tenants.a.acl]]\neffect = "allow"\npattern = "a/#/b"',
        "tenant 'a', rule 1: the pattern is no filter",
    ),
    "an effect": (
        '[[tenants.a.acl]]\neffect = "maybe"\npattern = "a"',
        "tenant 'a', rule 1: Invalid enum value 'maybe'",
    ),
    "a quota's name": ("[tenants.a.quotas]\nfish = 1", "tenant 'a': there is no quota 'fish'"),
    "a quota": (
        "[tenants.a.quotas]\nconnections = -1",
        "tenant 'a': quota 'connections' must be from 0 to 1048576",
    ),
    "a rate": (
        "[tenants.a.rates]\npublishes = { per_second = 0 }",
        "tenant 'a', rates, 'publishes': per_second and burst must be at least 1",
    ),
    "two owners": (
        '[tenants.a]\nserver_names = ["x"]\n[tenants.b]\nserver_names = ["X"]',
        "'x' leads to two tenants, 'a' and 'b'",
    ),
    "another table": ("[tenant.a]", "'tenant' is not known here: only 'tenants' is"),
}


@pytest.mark.parametrize(("text", "sentence"), MISTAKES.values(), ids=MISTAKES.keys())
def test_each_mistake_has_its_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "tenants.toml").write_text(text)
    with pytest.raises(DataDirectoryRefused) as caught:
        TenantsFile(tmp_path).read()
    assert sentence in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(InvalidTenants) as caught:
        describe_tenants(
            {"tenants": {"a": {"quotas": {"fish": 1}, "prgs": 900}, "b": {"rates": {"x": 1}}}}
        )
    assert len(caught.value.mistakes) == 3


def test_toml_and_json_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tenants.toml").write_text("")
    (tmp_path / "tenants.json").write_text("{}")
    with pytest.raises(DataDirectoryRefused, match="not in both"):
        TenantsFile(tmp_path).read()


class TestBrokerFile:
    def test_tenants_are_appended_and_never_leave(self, tmp_path: Path) -> None:
        assert prepare_broker(tmp_path, DEV).tenants == (DEV,)
        (tmp_path / "tenants.toml").write_text(WHOLE)
        acme = TenantEntry("acme", 2, 20)
        assert prepare_broker(tmp_path, DEV).tenants == (DEV, acme, TenantEntry("empty", 3))
        (tmp_path / "tenants.toml").write_text("[tenants.aaa]\n")
        names = [entry.name for entry in prepare_broker(tmp_path, DEV).tenants]
        assert names == ["dev", "acme", "empty", "aaa"], "a number is for ever"
        assert read_broker_file(tmp_path) == prepare_broker(tmp_path, DEV)

    def test_what_is_the_same_is_not_written_again(self, tmp_path: Path) -> None:
        prepare_broker(tmp_path, DEV)
        before = (tmp_path / BROKER_FILE).stat().st_ino
        prepare_broker(tmp_path, DEV)
        assert (tmp_path / BROKER_FILE).stat().st_ino == before

    @pytest.mark.parametrize(
        "text",
        ["[tenants.acme]\nprgs = 5", "[tenants.acme.quotas]\noffline_messages_per_session = 9"],
    )
    def test_other_numbers_are_refused(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "tenants.toml").write_text("[tenants.acme]\nprgs = 2")
        prepare_broker(tmp_path, None)
        (tmp_path / "tenants.toml").write_text(text)
        with pytest.raises(DataDirectoryRefused, match="made with other numbers"):
            prepare_broker(tmp_path, None)
        assert [entry.prgs for entry in read_broker_file(tmp_path).tenants] == [2]

    def test_the_development_tenant_keeps_its_numbers(self, tmp_path: Path) -> None:
        prepare_broker(tmp_path, DEV)
        with pytest.raises(DataDirectoryRefused):
            prepare_broker(tmp_path, TenantEntry("dev", 4))
        with pytest.raises(DataDirectoryRefused):
            prepare_broker(tmp_path, None)


class TestReload:
    def test_a_changed_file_is_in_force_without_a_restart(self, tmp_path: Path) -> None:
        path = tmp_path / "tenants.json"
        _write(path, {"blue": {}}, 1)
        lab = TenantLab({"blue": {}})
        lab.service.obey(TenantsFile(tmp_path))
        writer = connect(lab.door("blue"))
        assert not writer.publish(b"t", b"", 1).is_failure
        _write(path, {"blue": {"acl": [], "server_names": ["blue.test"]}}, 2)
        lab.tick(1_000)
        assert writer.publish(b"t", b"", 1).is_failure
        assert lab.service.server_names == {"blue.test": "blue"}

    def test_a_file_with_mistakes_changes_nothing(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "tenants.json"
        _write(path, {"blue": {"acl": []}}, 1)
        lab = TenantLab({"blue": {}})
        lab.service.obey(TenantsFile(tmp_path))
        _write(path, {"blue": {"acl": 7}}, 2)
        lab.tick(2_000)
        assert connect(lab.door("blue")).publish(b"t", b"", 1).is_failure
        told = [line for line in caplog.messages if "the tenants stay as they were" in line]
        assert len(told) == 1 and "tenant 'blue'" in told[0]


class TestDoors:
    def test_a_server_name_leads_to_one_tenant(self, tmp_path: Path) -> None:
        lab = TenantLab({"dev": {}, "acme": {}})
        listeners = asyncio.run(_listeners(lab, tmp_path))
        assert listeners.tenant_of("anything") == "dev"  # while nobody has names
        lab.service.server_names = {"acme.test": "acme"}
        names = ["acme.test", "ACME.test", "localhost", None, "other", "acme.test.evil", ""]
        found = [listeners.tenant_of(name) for name in names]
        assert found == ["acme", "acme", "dev", "dev", None, None, None]

    def test_ports_of_single_tenants(self) -> None:
        lab = TenantLab({"dev": {}, "acme": {"mqtt": "127.0.0.1:1884"}, "b": {"mqtt": "[::1]:0"}})
        assert tenant_doors(lab.service) == {"acme": Door("127.0.0.1", 1884), "b": Door("::1", 0)}
        assert tenant_doors(lab.service, 10)["acme"].port == 1894
        for wrong in ("1884", "127.0.0.1:http", "127.0.0.1:70000"):
            lab.describe({"acme": {"mqtt": wrong}})
            with pytest.raises(DataDirectoryRefused, match="HOST:PORT"):
                tenant_doors(lab.service)


async def _listeners(lab: TenantLab, data: Path) -> Listeners:
    return Listeners(lab.service, Doors(development=True), DevelopmentCertificates(data), "dev")


def _write(path: Path, tenants: object, version: int) -> None:
    path.write_text(json.dumps({"tenants": tenants}))
    os.utime(path, ns=(version, version))
