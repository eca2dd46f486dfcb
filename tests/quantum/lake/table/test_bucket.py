"""A table in a bucket of a real S3 interface: the condition is the server's, not ours."""

from __future__ import annotations

import pickle
import urllib.request
from collections.abc import Iterator

import pytest

from quantum.lake.table import RangeTaken, Table, open_store
from tests.quantum.lake.table.writers import OTHER, STREAM, add, all_rows, compact
from tests.slipstream.servers import S3Server


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = S3Server()
    request = urllib.request.Request(f"{server.url}/lake", method="PUT")
    urllib.request.urlopen(request, timeout=10).close()
    yield server.url
    server.stop()


@pytest.fixture
def url(endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    for name, value in {
        "AWS_ENDPOINT": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return f"s3://lake/{request.node.name}"


def test_a_name_is_created_once(url: str) -> None:
    store = open_store(url)
    assert store.create("a", b"1")
    assert not store.create("a", b"2")
    assert store.read("a") == b"1"
    with pytest.raises(FileNotFoundError):
        store.read("b")
    assert [each.name for each in store.names("")] == ["a"]


def test_writers_share_a_table_in_a_bucket(url: str) -> None:
    one = Table.create(open_store(url), schema_version=1, at_ms=0)
    two = Table.open(open_store(url))
    add(one, STREAM, 1, 3)
    add(two, OTHER, 7, 8)
    with pytest.raises(RangeTaken):
        add(two, STREAM, 3, 4)
    add(two, STREAM, 4, 4)
    compact(one, STREAM)
    assert all_rows(open_store(url), STREAM) == [1, 2, 3, 4]
    assert all_rows(open_store(url), OTHER) == [7, 8]
    assert one.store.uri("x").startswith("s3a://lake/")
    assert all_rows(pickle.loads(pickle.dumps(one.store)), OTHER) == [7, 8]
