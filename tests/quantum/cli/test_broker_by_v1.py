"""Issue 20, item 16: the commands that look at a broker ask /v1, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from typer.testing import CliRunner, Result

from clustor.runtime.cluster_file import NodeEntry
from clustor.runtime.peers.transport import Address
from quantum.cli import broker, tenants
from quantum.node.orders import BrokerOrders
from quantum.node.served import ServedBroker
from quantum.node.views import BrokerViews
from quantum.tenants.broker_file import TenantEntry
from tests.clustor.control.plane import OPERATOR, settled_plane
from tests.quantum.admin.host import Host
from tests.quantum.admin.serving import served
from tests.quantum.serving.client import connect
from tests.quantum.serving.lab import Lab, LabGroup


class Groups(list[LabGroup]):
    """The lab's groups, asked as a node's are."""

    def values(self) -> Groups:
        return self


@pytest.fixture
def lab() -> Lab:
    lab = Lab()
    node = cast("Any", lab.node)
    node.disk_room = SimpleNamespace(level="DiskOk", free_bytes=1 << 40)
    node.groups = Groups(lab.node.groups)
    return lab


@pytest.fixture
def place(lab: Lab) -> Iterator[Address]:
    found = object.__new__(ServedBroker)
    found._service = lab.service
    found.views, found.orders = BrokerViews(lab.service), BrokerOrders(lab.service)
    entry = NodeEntry(2, "127.0.0.1", 0, 1, "")
    found._node = cast("Any", SimpleNamespace(cluster=SimpleNamespace(nodes=(entry,))))
    host = Host(settled_plane())
    with served(host, development=OPERATOR, broker=lambda: found) as (address, _):
        yield address


def run(place: Address, command: Any, *arguments: str) -> Result:
    tree = command if isinstance(command, typer.Typer) else typer.Typer()
    if tree is not command:
        tree.command()(command)
    return CliRunner().invoke(tree, [*arguments, "--admin", str(place)])


def test_lists_come_page_by_page_and_name_the_next(lab: Lab, place: Address) -> None:
    for number in range(3):
        client = connect(lab, client_id=f"c{number}", session_expiry_interval=9)
        client.subscribe(b"t/%d" % number, 1)
        client.publish(b"t/%d" % number, b"kept", 1, retain=True)
    first = run(place, broker.sessions, "--limit", "2")
    assert first.exit_code == 0 and "there are more: --after c1" in first.output, first.output
    rest = run(place, broker.sessions, "--limit", "2", "--after", "c1", "--json")
    assert [row["client_id"] for row in json.loads(rest.output)["items"]] == ["c2"]
    found = json.loads(run(place, broker.topics, "t/1", "--json").output)
    assert found["items"] == [{"filter": "t/1", "subscribers": 1}]
    found = json.loads(run(place, broker.retained, "t/+", "--json").output)
    assert [row["payload"]["text"] for row in found["items"]] == ["kept"] * 3
    assert "kept" in run(place, broker.retained).output
    shown = json.loads(run(place, broker.session_app, "show", "c2").output)
    assert shown["filters"][0]["filter"] == "t/2"
    refused = run(place, broker.retained, "a/#/b")
    assert refused.exit_code == 1 and refused.stderr.count("\n") == 1


def test_a_session_is_ended_and_one_that_is_not_there_is_named(lab: Lab, place: Address) -> None:
    client = connect(lab, client_id="lamp", session_expiry_interval=9)
    assert "ended the session of lamp" in run(place, broker.session_app, "kick", "lamp").output
    lab.settle()
    assert not lab.service.tenants["dev"].session_prg(b"lamp").broker.state.sessions
    assert client is not None
    for verb in ("show", "kick"):
        refused = run(place, broker.session_app, verb, "nobody")
        assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
        assert "no such session" in refused.stderr


def test_where_another_node_leads_it_is_asked_there(lab: Lab, place: Address) -> None:
    connect(lab, client_id="lamp", session_expiry_interval=9)
    for group in lab.node.groups:
        group.replica.leads, group.replica.leader_id = False, 2
    lab.node.is_due = True
    lab.settle()
    refused = run(place, broker.session_app, "kick", "lamp")
    assert refused.exit_code == 12 and "127.0.0.1:1" in refused.stderr


def test_of_several_tenants_one_must_be_named(lab: Lab, place: Address) -> None:
    lab.service.add_tenant(TenantEntry("other", 1), 1)
    refused = run(place, broker.sessions)
    assert (refused.exit_code, refused.stderr) == (
        2,
        "quantum: say whose it is: --tenant NAME (tenants served here: dev, other)\n",
    )
    assert run(place, broker.sessions, "--tenant", "other").exit_code == 0
    refused = run(place, broker.sessions, "--tenant", "nobody")
    assert refused.exit_code == 1 and "no such tenant" in refused.stderr


def test_the_ring_and_the_status_are_shown(lab: Lab, place: Address) -> None:
    shown = json.loads(run(place, tenants.app, "show", "dev").output)
    assert (shown["prg_count"], shown["settled"]) == (3, True)
    assert run(place, tenants.app, "show", "nobody").exit_code == 1
    assert run(place, tenants.app, "grow", "dev", "--prgs", "1").exit_code == 1
    told = run(place, broker.status)
    assert told.exit_code == 0 and "Partitions" in told.output, told.output
