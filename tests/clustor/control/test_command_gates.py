"""A call that came later enters no log that some member could not apply."""

from __future__ import annotations

import msgspec
import pytest

from clustor.control import (
    KINDS,
    Command,
    GrantDek,
    Members,
    PlacePartition,
    RefusalCode,
    ReportNode,
    SetAcls,
    WriterMode,
)
from clustor.control.command_gates import GATE_OF, CommandGate, lacking_nodes, refuse_early
from clustor.control.objects import canonical
from tests.clustor.control.plane import Plane, node_identity, settled_plane

GROUP = 1_000_000_000
GRANT = GrantDek(epoch=7, wrapped="w" * 60, kek_fingerprint="0123456789abcdef")
FIRST_RELEASE = frozenset(
    {
        "InitializeCluster", "CompactHistory", "PublishRbacManifest", "RegisterKey",
        "RetireKey", "AdvanceKeyEpochs", "ReportZeroization", "RegisterNode",
        "IssueBootstrapToken", "EnrollNode", "ReportNode", "DrainNode", "RemoveNode",
        "PlacePartition", "RetirePartition", "SetRoutingMap", "SetDurabilityMode",
        "SetFollowerReads", "RecordMembership", "ReportQuarantine", "ClearQuarantine",
        "AdminResumePartition", "PublishProofs", "ClearProofConflict", "PublishFeatureManifest",
        "SetFeatureGate", "PublishBundle", "ArmBarrier",
        "IssueBreakGlass", "RecordOverride", "RevokeOverride", "CommitFence", "PromoteRegion",
        "LiftFence", "CreateTenant", "UpdateTenant", "DeleteTenant", "SetQuotas", "SetAcls",
        "SetTrust", "SetConfiguration", "RollBackConfiguration", "IndexAudit",
    }
)  # fmt: skip
"""Never add to this: a new call gets a gate."""


def test_every_call_is_of_the_first_release_or_has_a_gate() -> None:
    names = {kind.name for kind in KINDS}
    assert names == FIRST_RELEASE | GATE_OF.keys()
    assert not FIRST_RELEASE & GATE_OF.keys()


def cluster(*voters: int) -> Plane:
    plane = settled_plane()
    plane.done(
        PlacePartition(
            partition_id=GROUP, members=Members(voters=voters), load=1, expected_routing_epoch=0
        )
    )
    return plane


def report(plane: Plane, node: int, *gates: CommandGate) -> None:
    word = ReportNode(
        node_id=node,
        version="1.0",
        io_writer_mode=WriterMode.BLOCKING,
        features=tuple(each.value for each in gates),
    )
    plane.done(word, by=node_identity(node))


def refusal(plane: Plane, command: Command = GRANT) -> tuple[RefusalCode, object] | None:
    told = refuse_early(plane.machine.kv, canonical(command), GROUP)
    return None if told is None else (told.code, told.facts.get("nodes"))


def test_one_old_member_closes_the_gate_and_its_upgrade_opens_it() -> None:
    plane = cluster(1, 2, 3)
    assert refusal(plane) == (RefusalCode.NOT_SUPPORTED, [1, 2, 3])  # nobody has said a word
    for node in (1, 2):
        report(plane, node, *CommandGate)
    report(plane, 3, CommandGate.DURABILITY_RECORDS)
    told = refuse_early(plane.machine.kv, canonical(GRANT), GROUP)
    assert told is not None
    assert told.facts == {"kind": "GrantDek", "gate": "DataKeyGrants", "nodes": [3]}
    report(plane, 3, *CommandGate)
    assert refusal(plane) is None
    report(plane, 2)  # an older build is put back
    assert refusal(plane) == (RefusalCode.NOT_SUPPORTED, [2])


def test_only_members_of_the_group_count() -> None:
    plane = cluster(1, 2, 3)
    for node in (1, 2, 3):
        report(plane, node, *CommandGate)
    assert refusal(plane) is None
    assert lacking_nodes(plane.machine.kv, CommandGate.FORWARDS_HELD, (1, 4, 99)) == [4, 99]


def test_calls_of_the_first_release_ask_nobody() -> None:
    plane = cluster(1, 2, 3)
    assert refusal(plane, ReportNode(
        node_id=1, version="0", io_writer_mode=WriterMode.BLOCKING, features=()
    )) is None  # fmt: skip


RULES = {
    "of the first release": ({"action": "Any", "filter": "a/#"}, False),
    "about a stream": ({"action": "Any", "resource": "Stream"}, True),
    "about topics by that word": ({"action": "Any", "resource": "Topic"}, True),
    "of a later action": ({"action": "Produce"}, True),
    "with a name": ({"action": "Any", "name": "x"}, True),
    "with a prefix": ({"action": "Any", "prefix": "x"}, True),
}


@pytest.mark.parametrize(("rule", "is_later"), RULES.values(), ids=RULES.keys())
def test_a_later_access_rule_waits_for_every_node(rule: dict[str, str], is_later: bool) -> None:
    """Nodes that are no members of the control plane read the lists, too."""
    plane = cluster(1, 2, 3)
    rules = ({"effect": "Allow", "action": "Any"}, {"effect": "Allow", **rule})
    command = msgspec.convert(
        {"kind": "SetAcls", "tenant_id": "a", "expected_version": 0, "rules": rules}, SetAcls
    )
    for node in (1, 2, 3):
        report(plane, node, *CommandGate)
    told = refuse_early(plane.machine.kv, canonical(command), GROUP)
    assert (told is not None) == is_later
    if told is not None:
        assert (told.facts["gate"], told.facts["nodes"]) == ("ResourceRules", [4])
    report(plane, 4, *CommandGate)
    assert refusal(plane, command) is None


@pytest.mark.parametrize(
    ("content", "is_refused"),
    [(b'{"kind":"FromTheFuture"}', True), (b"{}", False), (b"nonsense", False), (b"\xff", False)],
)
def test_what_the_leader_does_not_know_it_does_not_propose(
    content: bytes, is_refused: bool
) -> None:
    told = refuse_early(cluster(1, 2, 3).machine.kv, msgspec.Raw(content), GROUP)
    assert (told is not None) == is_refused
    if told is not None:
        assert (told.code, told.facts) == (RefusalCode.NOT_SUPPORTED, {"kind": "FromTheFuture"})
