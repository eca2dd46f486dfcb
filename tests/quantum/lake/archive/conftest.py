"""Every store that an archive can be in: a directory, and S3 as a real server speaks it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from quantum.archive import Objects, open_objects
from tests.slipstream.servers import S3Server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def s3_url(
    s3_server: S3Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A bucket of its own, reached as in production: the credentials are in the environment."""
    bucket = f"bucket-{abs(hash(request.node.nodeid))}"
    with urlopen(Request(f"{s3_server.url}/{bucket}", method="PUT")) as answer:
        assert answer.status == 200
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return f"s3://{bucket}/some/prefix"


@pytest.fixture(params=["directory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("s3_url"))
    return (tmp_path / "archive").as_uri()


@pytest.fixture
def objects(url: str) -> Objects:
    return open_objects(url)


@pytest.fixture
def directory(tmp_path: Path) -> Objects:
    return open_objects((tmp_path / "archive").as_uri())
