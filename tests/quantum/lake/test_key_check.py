"""Issue 20, item 12: a running cluster is asked whether the keys fit, before anything is read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from clustor.runtime.keys.store import create_keyring
from quantum.archive.feed_page import key_name
from quantum.archive.types import IndexRange, PrgId
from quantum.lake.archive import DirectoryKeys
from quantum.lake.errors import BadAddress, NotPermitted, WrongKey
from quantum.lake.feed.client import ClusterSource
from quantum.lake.jobs.choosing import log_bytes
from quantum.lake.key_check import check_keys
from quantum.lake.options import parse_options
from quantum.lake.schema import NAMES
from quantum.lake.source import QuantumReader

PRG = PrgId("dev", 0)
REFUSAL: dict[str, object] = {
    "error": "NoProof",
    "message": "no proof of this tenant's keys",
    "facts": {"wanted": "key 0123 (epoch 1)"},
}
ROW = {"tenant": "dev", "number": 0, "partition": 1000, "first": 11, "last": 20, "bytes": 1000}


class Node(ThreadingHTTPServer):
    """A node's feed as far as a check sees it: a list, and one answer to whoever wants a page."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer: tuple[int, dict[str, object]] = (503, {"error": "no leader now"})
        self.asked: list[str] = []
        self.rows = [ROW | {"refusal": ""}]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Node

    def do_GET(self) -> None:  # http.server's
        self.server.asked.append(self.path)
        listed = 200, {"partitions": self.server.rows}
        code, document = listed if self.path == "/v1/feed" else self.server.answer
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[Node]:
    with Node() as node:
        thread = threading.Thread(target=node.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield node
        finally:
            node.shutdown()
            thread.join()


@pytest.fixture
def node() -> Iterator[Node]:
    with serving() as node:
        yield node


def test_a_node_that_just_started_is_not_believed_to_lack_a_partition(
    node: Node, tmp_path: Path
) -> None:
    """It lists nothing, and knows no page: the others are asked before anybody is told so."""
    create_keyring(tmp_path)
    with serving() as fresh:
        fresh.rows, fresh.answer = [], (404, {"error": "NotFound", "message": "no such partition"})
        both = f"{fresh.address},{node.address}"
        source = ClusterSource.at(both, DirectoryKeys(str(tmp_path)))
        assert source.prgs() == [PRG]
        assert source.bounds(PRG).last == 20
        node.answer = 403, REFUSAL
        with pytest.raises(NotPermitted, match="no proof"):
            next(source.entries(IndexRange(PRG, 11, 12)))
        with pytest.raises(BadAddress, match="no such partition"):
            source.bounds(PrgId("dev", 7))
        node.answer = fresh.answer
        with pytest.raises(BadAddress, match="no such partition"):
            next(source.entries(IndexRange(PRG, 11, 12)))


def test_item_12_a_refusal_says_what_was_wanted_and_given(node: Node, tmp_path: Path) -> None:
    ours = key_name(create_keyring(tmp_path))
    source = ClusterSource.at(node.address, DirectoryKeys(str(tmp_path)))
    check_keys(source, PRG)  # it refuses for another reason: the proof was believed
    node.answer = 403, REFUSAL
    with pytest.raises(NotPermitted) as caught:
        check_keys(source, PRG)
    assert f"wanted=key 0123 (epoch 1), given={ours} of directory {tmp_path}" in str(caught.value)
    with pytest.raises(WrongKey, match="no key ring"):
        check_keys(ClusterSource.at(node.address, DirectoryKeys("/nowhere")), PRG)
    with pytest.raises(BadAddress):
        check_keys(source, PrgId("dev", 7))


def test_item_12_a_query_is_refused_where_it_is_planned(node: Node, tmp_path: Path) -> None:
    """A cluster tells everybody how far its logs go: only a page tells whether the keys fit."""
    create_keyring(tmp_path)
    node.answer = 403, REFUSAL
    options = parse_options({"cluster": node.address, "keys": str(tmp_path)})
    with pytest.raises(NotPermitted, match="wanted=key 0123"):
        QuantumReader(options, NAMES).partitions()


def test_item_13_one_question_tells_how_much_there_is(node: Node, tmp_path: Path) -> None:
    source = ClusterSource.at(node.address, DirectoryKeys(str(tmp_path)))
    assert [log_bytes(source, {PRG: last}) for last in (0, 10, 15, 20, 99)] == [
        *(1000, 1000, 500, 0, 0)
    ]
    assert node.asked == ["/v1/feed"] * 5
