"""A change of members that waits says for what: every few seconds, and when its time is over."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from clustor.runtime.peers.transport import Address
from quantum.cli import group_changes
from quantum.cli.group_changes import ChangeFailed, ChangeTimedOut, GroupChanges

ANSWERS = {"said": "the group is not placed yet"}


class Door(BaseHTTPRequestHandler):
    """A leader's admin port that cannot begin now, or refuses for good."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({"error": ANSWERS["said"]}).encode()
        self.send_response(409)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
        """Nobody reads it."""


@pytest.fixture
def door() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Door) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


class Watched(GroupChanges):
    """An operator who sees one cluster, as it is put before it."""

    def __init__(self, admin: str, seconds: float, **group: Any) -> None:
        self.heard: list[str] = []
        super().__init__([Address("127.0.0.1", 1)], seconds, self.heard.append)
        self._group: dict[str, Any] = {
            "partition_id": 1_000,
            "role": "Leader",
            "state": "running",
            "term": 3,
            "leader_id": 1,
            "replica_id": 1,
            "voters": [1, 2, 3],
            "learners": [],
            "outgoing": [],
            "rolled_back": "",
            "membership_phase": "Idle",
            "membership_recorded": True,
            **group,
        }
        self._admin = admin

    def status(self) -> dict[str, Any]:
        return {
            "nodes": [{"node_id": 1, "groups": [self._group]}],
            "addresses": [{"node_id": 1, "admin": self._admin}],
        }


def test_what_a_leader_waits_for_is_said(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_changes, "SAY_AGAIN_SECONDS", 0.0)
    ANSWERS["said"] = "the group is not placed yet"
    changes = Watched(door, 1.0)
    with pytest.raises(ChangeTimedOut, match=r"group 1000: the group is not placed yet$"):
        changes.add(4)
    assert "waiting for group 1000: the group is not placed yet" in changes.heard


def test_the_step_of_a_change_is_said(door: str) -> None:
    with pytest.raises(ChangeTimedOut, match=r"group 1000: its change is in CatchUp$"):
        Watched(door, 0.2, membership_phase="CatchUp").add(4)


def test_what_is_refused_for_good_ends_the_change_at_once(door: str) -> None:
    ANSWERS["said"] = "CapacityExceeded: the disk of node 4 is 90 % full"
    with pytest.raises(ChangeFailed, match="group 1000: CapacityExceeded: the disk of node 4"):
        Watched(door, 600.0).add(4)
