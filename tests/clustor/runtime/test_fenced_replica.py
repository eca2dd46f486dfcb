"""An error of our own in one replica fences it: it promises nothing more, and its group goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from clustor.kv import KvMachine
from clustor.raft.errors import MembershipRefused
from clustor.raft.reconfiguration import MembershipRequest, Preflight
from clustor.raft.types import RoutingEpoch
from clustor.replica import Applied, NotLeader, Unknown
from clustor.runtime.containment import contained
from clustor.runtime.repair.fenced_replica import FencedReplica
from tests.clustor.replica import harness
from tests.clustor.replica.harness import Cluster, Node, put


@pytest.fixture(autouse=True)
def _fencing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "Replica", FencedReplica)
    monkeypatch.setattr(contained, "counts", {})
    monkeypatch.setattr(contained, "raising", False)


class Slip(Exception):
    """What nobody foresaw."""


def plant_in_machine(node: Node) -> None:
    """Let this replica's machine, and no other's, fall over the next command."""
    machine = cast("KvMachine", node.up.machine)

    def apply_batch(_index: int, _commands: Sequence[bytes]) -> list[bytes]:
        raise Slip

    machine.apply_batch = apply_batch  # type: ignore[method-assign,assignment]


def test_a_leader_whose_machine_slips_is_fenced_and_another_leads() -> None:
    cluster = Cluster(3)
    old = cluster.leader()
    plant_in_machine(old)
    cluster.propose(old, (1, put("a", "x")))
    cluster.settle()
    assert not old.up.leads and not old.up.ready
    assert old.up.failed is not None and "Slip" in old.up.failed
    assert not any(isinstance(each, Applied) for each in old.outcomes), "nothing is acknowledged"
    assert any(isinstance(each, Unknown | NotLeader) for each in old.outcomes)
    assert sum(output.failed is not None for output in old.outputs) == 1, "it is told once"
    cluster.cut_off.clear()
    new = cluster.leader()
    assert new is not old
    cluster.propose(new, (2, put("b", "y")))
    cluster.settle()
    assert any(isinstance(each, Applied) for each in new.outcomes)
    assert contained.counts == {"group": 1}


def test_a_fenced_replica_says_nothing_whatever_comes() -> None:
    cluster = Cluster(3)
    old = cluster.leader()
    plant_in_machine(old)
    cluster.propose(old, (1, put("a", "x")))
    cluster.settle()
    old.outputs.clear()
    cluster.run(500)
    cluster.propose(old, (9, put("c", "z")))
    cluster.settle()
    assert not any(output.messages or output.disk for output in old.outputs)
    assert isinstance(old.outcomes[-1], NotLeader)


def test_it_opens_again_from_what_is_on_disk() -> None:
    cluster = Cluster(3)
    old = cluster.leader()
    plant_in_machine(old)
    cluster.propose(old, (1, put("a", "x")))
    cluster.settle()
    old.works.clear()
    cluster.open(old)
    cluster.run(1_000)
    assert old.up.ready
    digests = {node.up.machine.digest() for node in cluster.nodes.values()}
    assert len(digests) == 1


@pytest.mark.parametrize("method", ["tick", "receive", "take", "take_disk", "disk_done"])
def test_every_way_in_fences(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(1)
    node = cluster.leader()
    group = node.up.group

    def slips(*_args: object, **_kwargs: object) -> None:
        raise Slip

    name = {"tick": "tick", "receive": "receive", "take": "take", "disk_done": "fsync_sample"}
    monkeypatch.setattr(group, name.get(method, "take"), slips)
    if method == "take_disk":
        monkeypatch.setattr(node.up._disk, "take", slips)
        assert node.up.take_disk() == []
    elif method == "take":
        assert node.up.take().failed is not None
    else:
        cluster.propose(node, (1, put("a", "x")))
        with monkeypatch.context() as calm:
            calm.setattr(group, "take", type(group).take.__get__(group))
            cluster.settle()
        if method == "tick":
            node.up.tick(cluster.now_ms + 10)
        if method == "receive":
            node.up.receive(None)  # type: ignore[arg-type]
    assert node.up.failed is not None and not node.up.leads


def test_a_change_that_is_refused_fences_nothing() -> None:
    cluster = Cluster(3)
    follower = next(node for node in cluster.nodes.values() if node is not cluster.leader())
    request = MembershipRequest((), RoutingEpoch(1), cast("Preflight", None))
    with pytest.raises(MembershipRefused):
        follower.up.change_membership(request)
    assert follower.up.failed is None
