"""Pages: what is read, by pages; what is called, once; what is malformed, and why."""

from __future__ import annotations

import json
import logging
from typing import Any

import msgspec
import pytest
import rfc8785

from clustor.control import SetQuotas, canonical, cluster_state
from clustor.kv import RecordPage
from clustor.runtime.admin.http import Request
from quantum.admin import reading
from quantum.admin.reading import PAGE_BYTES_MAX
from quantum.admin.shapes import taken
from tests.clustor.control.plane import OPERATOR, Plane, proof, settled_plane
from tests.clustor.control.samples import bundle, manifest
from tests.quantum.admin.host import Desk


@pytest.fixture
def desk() -> Desk:
    return Desk(development=OPERATOR)


async def pages(desk: Desk, target: str) -> list[list[dict[str, Any]]]:
    found, after = [], None
    while True:
        told = await desk.ask("GET", target + (f"&after={after}" if after else ""))
        assert told.code == 200, told.body
        found.append(told.body["items"])
        after = told.body["after"]
        if after is None:
            return found


async def test_a_list_comes_by_pages_whole_and_in_order(desk: Desk) -> None:
    for number in range(25):
        desk.plane.add_tenant(f"t{number:02d}")
    found = await pages(desk, "/v1/tenants?limit=10")
    assert [len(page) for page in found] == [10, 10, 6]
    names = [row["tenant_id"] for page in found for row in page]
    assert names == ["a", *(f"t{number:02d}" for number in range(25))]


class Generous:
    """A store that has no bound of its own, as a node's copy has none."""

    def __init__(self, store: Any) -> None:
        self.get = store.get
        self._store = store

    def range(self, start: bytes, end: bytes | None, limit: int) -> RecordPage:
        found: list[Any] = []
        while True:
            page = self._store.range(start, end, limit - len(found))
            found += page.records
            if not page.more or len(found) >= limit:
                return RecordPage(page.revision, found, page.more)
            start = page.records[-1].key + b"\0"


async def test_a_page_is_bounded_in_bytes_too(desk: Desk) -> None:
    roots = ["x" * 200_000]
    for number in range(30):
        desk.plane.add_tenant(f"t{number:02d}")
        body = {"expected_version": "0", "roots": roots}
        told = await desk.ask("PUT", f"/v1/tenants/t{number:02d}/trust", body)
        assert told.code == 200, told.body
    desk.host.wrap = Generous
    found = await pages(desk, "/v1/certificates?limit=1000")
    assert len(found) == 2
    assert len(json.dumps(found[0])) < PAGE_BYTES_MAX + 300_000
    assert sum(map(len, found)) == 30


async def test_the_audit_trail_is_read_from_its_end(desk: Desk) -> None:
    found = await pages(desk, "/v1/audit?limit=3")
    sequences = [int(row["sequence"]) for page in found for row in page]
    assert sequences == [7, 6, 5, 4, 3, 2, 1]
    newest = found[0][0]
    assert (newest["kind"], newest["outcome"]) == ("PlacePartition", "Done")
    assert newest["answer"]["result"]["survivable"] is True
    assert newest["identity"] == OPERATOR
    assert (await pages(desk, "/v1/audit?ring=publications&limit=3")) == [[]]


async def test_a_call_is_carried_out_once_under_its_key(desk: Desk) -> None:
    body, key = {"tenant_id": "b", "sni": "b.example.com"}, {"idempotency-key": "mine-1"}
    first = await desk.ask("POST", "/v1/tenants", body, headers=key)
    second = await desk.ask("POST", "/v1/tenants", body, headers=key)
    assert first.code == second.code == 200
    assert first.body == second.body
    assert first.headers["Request-Id"] == first.body["request_id"] == "mine-1"
    other = await desk.ask("POST", "/v1/tenants", body | {"tenant_id": "c"}, headers=key)
    assert (other.code, other.body["error"]) == (409, "RequestIdReused")
    drawn = await desk.ask("POST", "/v1/tenants", body | {"tenant_id": "d"})
    assert drawn.headers["Request-Id"].startswith("drawn-")


async def test_wide_integers_are_strings_in_answers_and_either_in_requests(desk: Desk) -> None:
    for spelled in (0, "0"):
        again = Desk(development=OPERATOR)
        body = {"expected_version": spelled, "quotas": {"retained_bytes_max": str(1 << 40)}}
        assert (await again.ask("PUT", "/v1/tenants/a/quotas", body)).code == 200
        told = await again.ask("GET", "/v1/tenants/a/quotas")
        assert told.body["retained_bytes_max"] == str(1 << 40)
        assert told.body["version"] == "1"
    told = await desk.ask("GET", "/v1/groups/1")
    assert told.body["placement"]["members"]["voters"] == ["1", "2", "3"]


async def test_values_of_a_configuration_keep_their_kind(desk: Desk) -> None:
    document = {"number": 5, "text": "5", "truth": True}
    body = {"scope": {"kind": "Cluster"}, "expected_version": 0, "document": document}
    assert (await desk.ask("PUT", "/v1/config", body)).code == 200
    told = await desk.ask("GET", "/v1/config")
    assert told.body["in_force"]["document"] == document
    assert type(told.body["in_force"]["document"]["number"]) is int


async def test_configuration_rolls_back_and_is_explained(desk: Desk) -> None:
    for version, value in ((0, 1), (1, 2)):
        body = {"scope": {"kind": "Cluster"}, "expected_version": version, "document": {"k": value}}
        assert (await desk.ask("PUT", "/v1/config", body)).code == 200
    assert (await desk.ask("POST", "/v1/config/rollback?to=1")).code == 200
    told = await desk.ask("GET", "/v1/config/explain?key=k&tenant=a")
    assert told.body["value"] == 1
    assert (told.body["version"], told.body["set_by"]) == ("3", OPERATOR)
    tenant = {"scope": {"kind": "Tenant", "name": "a"}, "expected_version": 0, "document": {"k": 9}}
    assert (await desk.ask("PUT", "/v1/config", tenant)).code == 200
    told = await desk.ask("GET", "/v1/config/explain?key=k&tenant=a")
    assert (told.body["value"], told.body["scope"]) == (9, {"kind": "Tenant", "name": "a"})
    told = await desk.ask("GET", "/v1/config/explain?key=nothing")
    assert (told.code, told.body["message"]) == (404, "no scope sets this key")
    told = await desk.ask("GET", "/v1/config/versions")
    assert [row["version"] for row in told.body["items"]] == ["1", "2", "3", "1"]


async def test_every_kind_of_object_can_be_read(desk: Desk) -> None:
    plane = desk.plane
    plane.publish(proof(1, 10))
    plane.done(manifest())
    plane.done(bundle())
    for target in (
        "/v1/nodes/1",
        "/v1/routes",
        "/v1/proofs",
        "/v1/proofs/conflicts",
        "/v1/features",
        "/v1/bundles",
        "/v1/bundles/b1",
        "/v1/barriers",
        "/v1/keys",
        "/v1/roles",
        "/v1/break-glass",
        "/v1/overrides",
        "/v1/fences",
        "/v1/quarantines",
        "/v1/bootstrap-tokens",
        "/v1/certificates",
        "/v1/certificates/cluster",
        "/v1/loglevel",
        "/openapi.json",
    ):
        told = await desk.ask("GET", target)
        assert told.code == 200, (target, told.body)
    told = await desk.ask("GET", "/v1/groups/1")
    assert told.body["proof"]["last_durable_index"] == "10"
    told = await desk.ask("GET", "/v1/bundles")
    assert told.body["items"][0]["blob_bytes"] == "12"
    assert "definition_blob" not in told.body["items"][0]


class Explains:
    def why(self, group: int, question: str) -> object | None:
        return {"trace": question, "share": 0.5} if group == 1 else None

    def numbers(self) -> list[int]:
        return [1, 77]

    def status(self, group: int) -> dict[str, object] | None:
        return {"role": "Leader", "term": 3} if group in (1, 77) else None


async def test_groups_are_those_placed_and_those_hosted_and_can_be_asked_why() -> None:
    desk = Desk(development=OPERATOR, why=Explains(), groups=Explains())
    found = await pages(desk, "/v1/groups?limit=1")
    assert [page[0]["group"] for page in found] == ["1", "77"]
    assert found[0][0]["local"] == {"role": "Leader", "term": "3"}
    assert found[1][0]["placement"] is None
    told = await desk.ask("GET", "/v1/groups/1/why/WhyNotLeader")
    assert told.body["answer"] == {"trace": "WhyNotLeader", "share": 0.5}
    assert (await desk.ask("GET", "/v1/groups/2/why/WhyNotLeader")).code == 404
    assert (await desk.ask("GET", "/v1/groups/1/why/Nonsense")).code == 400
    assert (await desk.ask("GET", "/v1/groups/5")).code == 404


@pytest.mark.parametrize(
    ("method", "target", "body", "code", "says"),
    {
        "an unknown member": ("PUT", "/v1/nodes/9", {"x": 1}, 400, "unknown field"),
        "a member of the path again": ("PUT", "/v1/nodes/9", {"node_id": 9}, 400, "unknown field"),
        "a member is missing": ("POST", "/v1/tenants", {"tenant_id": "b"}, 400, "sni"),
        "not an object": ("POST", "/v1/tenants", [1], 400, "Expected `object`"),
        "a strange number": ("GET", "/v1/nodes/1e3", None, 400, "int"),
        "a negative number": ("GET", "/v1/nodes/-1", None, 400, "int"),
        "a number with a zero": ("GET", "/v1/nodes/01", None, 400, "int"),
        "a number beyond all": ("GET", f"/v1/nodes/{2**60}", None, 400, "int"),
        "a name with a newline": ("GET", "/v1/tenants/a%0A", None, 400, "regex"),
        "a path of bytes": ("GET", "/v1/tenants/%ff", None, 400, "UTF-8"),
        "an unknown parameter": ("GET", "/v1/nodes?x=1", None, 400, "unknown parameter"),
        "a parameter twice": ("GET", "/v1/nodes?limit=1&limit=2", None, 400, "twice"),
        "a parameter is missing": ("GET", "/v1/config/explain", None, 400, "missing"),
        "a limit of none": ("GET", "/v1/nodes?limit=0", None, 400, ">= 1"),
        "a limit too large": ("GET", "/v1/nodes?limit=1001", None, 400, "<= 1000"),
        "not a truth": ("GET", "/v1/nodes?linearizable=1", None, 400, "bool"),
        "a query of nothing": ("GET", "/v1/nodes?&&", None, 400, "query"),
        "a scope without its name": ("GET", "/v1/config?scope=Tenant", None, 400, "name"),
        "a body for nothing": ("DELETE", "/v1/nodes/4", {}, 400, "body"),
        "no such page": ("GET", "/v1/nothing", None, 404, "no such page"),
        "no such object": ("GET", "/v1/nodes/9", None, 404, "no such NodeSpec"),
        "another method": ("PATCH", "/v1/nodes/4", {}, 405, "PATCH"),
        "refused by meaning": ("DELETE", "/v1/nodes/1", None, 409, "partitions away"),
    }.values(),
)
async def test_what_is_wrong_is_said(
    desk: Desk, method: str, target: str, body: object, code: int, says: str
) -> None:
    revision = desk.plane.machine.kv.revision
    told = await desk.ask(method, target, body)
    assert told.code == code, told.body
    assert says in told.body["message"], told.body
    assert set(told.body) == {"error", "message", "next", "facts", "request_id"}
    assert told.body["next"]
    if code == 405:
        assert told.headers["Allow"] == "DELETE, GET, PUT"
    if code in (400, 404, 405):
        assert desk.plane.machine.kv.revision == revision, "what is malformed is no call"


@pytest.mark.parametrize("header", ["idempotency-key", "break-glass"])
async def test_a_header_that_is_no_name_is_refused(desk: Desk, header: str) -> None:
    told = await desk.ask("POST", "/v1/fences/f/lift", headers={header: "not a name"})
    assert told.code == 400


async def test_nesting_does_not_end_the_process(desk: Desk) -> None:
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    told = await desk.ask("POST", "/v1/tenants", {"tenant_id": deep})
    assert told.code == 400
    content = b'{"tenant_id":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    response = await desk.api.answer(Request("POST", "/v1/tenants", {"host": "localhost"}, content))
    assert response.code == 400


async def test_answers_are_canonical_json() -> None:
    plane = settled_plane()
    plane.done(SetQuotas(tenant_id="a", expected_version=0, quotas={}))
    desk = Desk(plane, development=OPERATOR)
    for target in ("/v1/cluster/state", "/v1/audit", "/v1/nodes/77", "/openapi.json"):
        response = await desk.api.answer(Request("GET", target, {"host": "localhost"}))
        assert isinstance(response.content, bytes)
        assert response.content == rfc8785.dumps(json.loads(response.content)), target


async def test_the_level_of_a_logger_is_set_and_shown(desk: Desk) -> None:
    logger = logging.getLogger("quantum.admin.test")
    try:
        body = {"logger": "quantum.admin.test", "level": "DEBUG"}
        told = await desk.ask("PUT", "/v1/loglevel", body)
        assert told.body == {"logger": "quantum.admin.test", "level": "DEBUG"}
        assert logger.level == logging.DEBUG
        told = await desk.ask("GET", "/v1/loglevel")
        assert {"logger": "quantum.admin.test", "level": "DEBUG"} in told.body["items"]
    finally:
        logger.setLevel(logging.NOTSET)
    told = await desk.ask("PUT", "/v1/loglevel", {"logger": "asyncio", "level": "DEBUG"})
    assert told.code == 400


async def test_the_state_of_a_cluster_is_of_one_revision(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is encoded beside the loop: what is called meanwhile must not show in it."""
    real = cluster_state

    def slow(store: Any) -> dict[str, Any]:
        desk.plane.add_tenant("late")
        return real(store)

    monkeypatch.setattr(reading, "cluster_state", slow)
    told = await desk.ask("GET", "/v1/cluster/state")
    assert told.code == 200, told.body
    assert [each["tenant_id"] for each in told.body["tenants"]] == ["a"]
    assert told.body["revision"] == "7"
    assert desk.plane.machine.kv.revision == 8


async def test_the_page_of_the_cluster_is_what_the_control_plane_gathers(desk: Desk) -> None:
    desk.plane.publish(proof(1, 10))
    told = await desk.ask("GET", "/v1/cluster/state")
    gathered = json.loads(canonical(cluster_state(desk.plane.machine.kv)))
    assert set(told.body) == set(gathered) | {"access", "revision", "cache_age_ms"}
    assert told.body["audit_records"] == str(gathered["audit_records"]) == "8"
    for name in ("nodes", "tenants", "partitions", "routing"):
        assert len(told.body[name]) == len(gathered[name]), name


async def test_a_plane_is_initialised_once_and_until_then_nobody_has_a_role() -> None:
    desk = Desk(Plane(initialized=False), development=OPERATOR)
    told = await desk.ask("GET", "/v1/cluster/state")
    assert (told.code, told.body["error"]) == (503, "NotInitialized")
    assert desk.kept.notes == [], "nobody was refused"
    told = await desk.ask("POST", "/v1/tenants", {"tenant_id": "b", "sni": "b.example.com"})
    assert (told.code, told.body["error"]) == (503, "NotInitialized")
    binding = {"identity": OPERATOR, "role": "Operator"}
    body = {"cluster_id": "fresh", "bindings": [binding]}
    told = await desk.ask("POST", "/v1/cluster/initialize", body)
    assert told.code == 200, told.body
    told = await desk.ask("GET", "/v1/cluster/state")
    assert told.body["cluster"]["cluster_id"] == "fresh"
    told = await desk.ask("POST", "/v1/cluster/initialize", body)
    assert (told.code, told.body["error"]) == (409, "AlreadyInitialized")


def test_a_struct_with_both_spellings_is_read_alike() -> None:
    both: list[dict[str, object]] = [{"quotas": {"a": 5}}, {"quotas": {"a": "5"}}]
    found = [
        taken(SetQuotas, each | {"kind": "SetQuotas", "tenant_id": "a", "expected_version": "1"})
        for each in both
    ]
    assert found[0] == found[1]
    with pytest.raises(msgspec.ValidationError):
        taken(SetQuotas, {"tenant_id": "a", "expected_version": "+1", "quotas": {}})
