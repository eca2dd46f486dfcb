"""Calls that not every build knows: none enters the log before every replica of it can apply it.

A replica that does not know a call refuses it where the others carry it out, and from then on two
states part. So the leader asks before it proposes: each call that came later has a gate, which is
open while every member of the control plane's group says that its build has it (`ReportNode`). A
closed gate is no state of the log. The machine asks nothing: what stands in a log was let in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from clustor.control.bundles import DefineActivate, ReportWarmup
from clustor.control.calls import Refused
from clustor.control.commands import KINDS
from clustor.control.draft import DraftReading, find, scan
from clustor.control.durability import RecordDurabilityMode
from clustor.control.key_grants import ActivateDek, ForgetDek, GrantDek, ReportDekReady
from clustor.control.lag_alerts import ReportLag
from clustor.control.nodes import NodeSpec
from clustor.control.placement import Placement
from clustor.control.reports import ReportSilence
from clustor.control.tenants import SetAcls
from clustor.control.types import RefusalCode

_SHOWN_MAX: Final = 32


class CommandGate(StrEnum):
    """What came after the first release; nodes report these names among their features."""

    DURABILITY_RECORDS = "DurabilityRecords"
    DATA_KEY_GRANTS = "DataKeyGrants"
    NODE_SILENCE = "NodeSilence"
    DEFINITIONS = "Definitions"  # warm-ups by node, and DefineActivate in a group's own log
    LAG_ALERTS = "LagAlerts"
    FORWARDS_HELD = "ForwardsHeld"  # a word between brokers, tag 12 of their link
    SLOW_DOWN = "SlowDown"  # a word between brokers, tag 13 of their link
    FULL_QUEUES = "FullQueues"  # a command of the broker's log, tag 17
    ASKS = "Asks"  # words between brokers, tags 14 and 15 of their link
    RESOURCE_RULES = "ResourceRules"  # access rules about more than topics; every node reads them
    STREAMS = "Streams"  # commands of the broker's log, tags 18 to 20, and items 21 and 22
    QUEUES = "Queues"  # section 2 of the broker's log, and words between brokers, tags 24 to 30
    QUEUE_TRANSACTIONS = "QueueTransactions"  # commands 21 and 22 of section 2, and its items
    QUESTIONS = "Questions"  # words between brokers, tags 31 and 32 of their link
    TOPICS = "Topics"  # commands and items of the broker's section 1: Kafka's topics and groups
    COMPACTION = "Compaction"  # kind 7 and pages `c` of section 1, and the configs that ask for it


GATE_OF: Final[Mapping[str, CommandGate]] = {
    RecordDurabilityMode.__name__: CommandGate.DURABILITY_RECORDS,
    GrantDek.__name__: CommandGate.DATA_KEY_GRANTS,
    ReportDekReady.__name__: CommandGate.DATA_KEY_GRANTS,
    ActivateDek.__name__: CommandGate.DATA_KEY_GRANTS,
    ForgetDek.__name__: CommandGate.DATA_KEY_GRANTS,
    ReportSilence.__name__: CommandGate.NODE_SILENCE,
    ReportLag.__name__: CommandGate.LAG_ALERTS,
    # Of the first release by name; what they mean is another since nodes warm up by themselves.
    ReportWarmup.__name__: CommandGate.DEFINITIONS,
    DefineActivate.__name__: CommandGate.DEFINITIONS,
}
"""The gate of a call, by its kind; what is not here every build knows."""
LATER_RULES_GATE: Final = CommandGate.RESOURCE_RULES
"""Of a `SetAcls` that has a word which the first release would not understand."""

_KNOWN: Final = frozenset(kind.name for kind in KINDS)


class _Rule(msgspec.Struct, gc=False):
    action: str = ""
    resource: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    name: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prefix: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Kind(msgspec.Struct, gc=False):
    kind: str = ""


class _Rules(msgspec.Struct, gc=False):
    rules: list[_Rule] = []


_decoder = msgspec.json.Decoder(_Kind)
_rules_decoder = msgspec.json.Decoder(_Rules)
_FIRST_ACTIONS: Final = frozenset({"", "Publish", "Subscribe", "Connect", "Any"})


def refuse_early(
    store: DraftReading, command: bytes | msgspec.Raw, partition_id: int
) -> Refused | None:
    """Say why a call must not enter the log of this group; None: it may.

    What is malformed may: every build refuses it alike.
    """
    try:
        kind = _decoder.decode(command).kind
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if kind and kind not in _KNOWN:
        return Refused(
            RefusalCode.NOT_SUPPORTED,
            "the control plane's leader does not know this call",
            {"kind": kind[:128]},
        )
    if kind == SetAcls.__name__ and _has_later_rules(command):
        everybody = [node.node_id for node in scan(store, NodeSpec)]
        words = "not every node knows access rules about more than topics: upgrade them first"
        return _refuse_lacking(store, kind, LATER_RULES_GATE, everybody, words)
    gate = GATE_OF.get(kind)
    if gate is None:
        return None
    words = "not every member of the control plane knows this call: upgrade them first"
    return _refuse_lacking(store, kind, gate, members_of(store, partition_id), words)


def _has_later_rules(command: bytes | msgspec.Raw) -> bool:
    """Say whether an access list has a word that the first release would not understand."""
    try:
        rules = _rules_decoder.decode(command).rules
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return any(
        each.action not in _FIRST_ACTIONS
        or any(member is not msgspec.UNSET for member in (each.resource, each.name, each.prefix))
        for each in rules
    )


def _refuse_lacking(
    store: DraftReading, kind: str, gate: CommandGate, nodes: Iterable[int], words: str
) -> Refused | None:
    lacking = lacking_nodes(store, gate, nodes)
    if not lacking:
        return None
    facts = {"kind": kind, "gate": gate.value, "nodes": lacking[:_SHOWN_MAX]}
    return Refused(RefusalCode.NOT_SUPPORTED, words, facts)


def members_of(store: DraftReading, partition_id: int) -> Iterable[int]:
    """Return who has a replica of a group, and who will or did; before it is placed, everybody."""
    placement = find(store, Placement, partition_id)
    if placement is not None:
        return sorted(placement.occupied)
    return [node.node_id for node in scan(store, NodeSpec)]


def lacking_nodes(store: DraftReading, gate: CommandGate, nodes: Iterable[int]) -> list[int]:
    """Return the nodes whose build, by their own word, lacks this; silence is a lack."""
    specs = ((node, find(store, NodeSpec, node)) for node in nodes)
    return [node for node, spec in specs if spec is None or gate.value not in spec.features]
