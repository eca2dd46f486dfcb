"""Issue 20: no read route shows what is kept of a password, and a first change changes no more."""

from __future__ import annotations

import json

import pytest

from quantum.config.live import SET
from quantum.tenants.passwords import hash_password
from tests.clustor.control.plane import OPERATOR
from tests.quantum.admin.host import Desk

SCOPE = {"kind": "Tenant", "name": "acme"}
READ = "/v1/config?scope=Tenant&name=acme"


async def put(desk: Desk, version: int, document: dict[str, object]) -> int:
    body = {"scope": SCOPE, "expected_version": version, "document": document}
    return (await desk.ask("PUT", "/v1/config", body)).code


def held(desk: Desk) -> str:
    return str(
        [each.value for each in desk.plane.machine.kv.range(b"config/", b"config0", 99).records]
    )


@pytest.fixture
def desk() -> Desk:
    return Desk(development=OPERATOR)


async def test_a_passwords_hash_is_in_no_answer_and_survives_other_changes(desk: Desk) -> None:
    kept = hash_password(b"secret", b"0" * 16)
    assert await put(desk, 0, {"users.ann": kept, "rates.publishes": 5}) == 200
    for path in (
        READ,
        "/v1/config/versions",
        "/v1/config/explain?key=users.ann&tenant=acme",
        "/v1/audit",
    ):
        told = await desk.ask("GET", path)
        assert told.code == 200 and "scrypt" not in json.dumps(told.body), path
    document = (await desk.ask("GET", READ)).body["in_force"]["document"]
    assert document == {"users.ann": SET, "rates.publishes": 5}
    assert held(desk).count(kept) == 1
    assert await put(desk, 1, document | {"rates.publishes": 6}) == 200
    assert held(desk).count(kept) == 2, "what was not changed is what it was"
    assert await put(desk, 2, {"users.bob": SET}) == 400, "nobody has the veil for a password"
    assert await put(desk, 1, document) == 409, "what was read is not what stands"


async def test_the_first_change_of_quotas_keeps_what_the_file_says() -> None:
    class Broker:
        def quotas_in_force(self, _tenant: str) -> dict[str, int]:
            return {"connections_max": 7, "retained_bytes_max": 8_000}

    desk = Desk(development=OPERATOR, broker=Broker)
    path = "/v1/tenants/filed/quotas"
    made = {"tenant_id": "filed", "sni": "filed.example.com"}
    assert (await desk.ask("POST", "/v1/tenants", made)).code == 200
    told = await desk.ask("PATCH", path, {"quotas": {"connections_max": 9}})
    assert told.code == 200, told.body
    found = (await desk.ask("GET", path)).body
    assert (found["connections_max"], found["retained_bytes_max"]) == ("9", "8000")
    told = await desk.ask("PATCH", path, {"quotas": {"retained_bytes_max": 10_000}})
    found = (await desk.ask("GET", path)).body
    assert (found["connections_max"], found["retained_bytes_max"]) == ("9", "10000")
