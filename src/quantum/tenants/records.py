"""What the control plane must hold about tenants: a plan for its leader.

The tenants of `broker.json` are recorded as they were made. Every other tenant that has a record
(`POST /v1/tenants`) is given partitions, and every ring grows to the `tenant_prg_count` of the
configuration, in a production cluster at least to what its tier and its quotas ask for (`sizing`).
The numbers of a tenant's groups come from the revision that made its record, which is never given
twice: a tenant that is made again under an old name finds nothing of the old one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from itertools import count, islice
from typing import Final

from clustor.control import (
    Command,
    CreateTenant,
    DraftReading,
    Members,
    NodeSpec,
    NodeState,
    Placement,
    RoutingMap,
    SetRoutingMap,
    TenantSpec,
    TenantTier,
    find,
    scan,
)
from clustor.control.objects import key_of
from clustor.log.types import PartitionId
from clustor.runtime.control.records import members_of, place, unplaced
from clustor.runtime.node import Node
from quantum.tenants.broker_file import DEVELOPMENT_PRGS, BrokerFile, TenantEntry
from quantum.tenants.control_words import known_tenants, tenant_word
from quantum.tenants.group_ids import group_of
from quantum.tenants.sizing import prgs_least

FIRST_CONTROLLED_ORDINAL: Final = 2_000_000
"""Behind the numbers of `broker.json`, and behind the control plane's own group."""
VOTERS_MAX: Final = 5
PLACED_SUFFIX: Final = ".tenants.local"
_HOST_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def tenant_records(
    broker: BrokerFile,
    members: Callable[[PartitionId], Members],
    settled: Callable[[str], bool] = lambda _name: True,
) -> Callable[[DraftReading], list[Command]]:
    """Plan every tenant, the placements of its partitions, and its ring.

    `settled` says whether a tenant's last growth is over, as far as this node knows.
    """

    def plan(store: DraftReading) -> list[Command]:
        filed = {entry.name: entry for entry in broker.tenants}
        found = [
            command
            for ordinal, entry in enumerate(broker.tenants)
            for command in _of_file(store, entry, ordinal, members)
        ]
        for name in known_tenants(store):
            found += _of_record(store, name, filed.get(name), settled)
        return found

    return plan


def record_tenants(
    node: Node, broker: BrokerFile, settled: Callable[[str], bool] = lambda _name: True
) -> None:
    """Let the control plane's leader record the tenants, if the cluster has a control plane."""
    if node.control is not None:
        node.control.ensure(
            tenant_records(
                broker,
                lambda each: members_of(node.groups[each].replica.group.core.hard.membership),
                settled,
            )
        )


def _of_file(
    store: DraftReading, entry: TenantEntry, ordinal: int, members: Callable[[PartitionId], Members]
) -> Iterable[Command]:
    """Yield what is missing of a tenant of the file; each of its rings is laid in its turn."""
    word, ring = tenant_word(store, entry.name), find(store, RoutingMap, entry.name)
    if not word.is_known or word.is_reborn:
        if not word.is_known and not word.is_deleted:
            yield CreateTenant(
                tenant_id=entry.name,
                sni=placed_name(entry.name),
                tier=TenantTier.DEVELOPMENT,
            )
        return
    groups = [group_of(ordinal, number) for number in range(entry.prg_count)]
    missing = [each for each in groups if find(store, Placement, each) is None]
    yield from (
        place(partition_id, voters, entry.name)
        for partition_id, voters in unplaced(store, {each: members(each) for each in missing})
    )
    if ring is None or missing:
        return
    steps = (entry.prgs, *(each.prg_count for each in entry.rings))
    if len(ring.grown) < len(steps) and len(ring.partitions) < len(groups):  # it only grows
        yield _lay(entry.name, ring, groups[: steps[len(ring.grown)]])


def _of_record(
    store: DraftReading, name: str, entry: TenantEntry | None, settled: Callable[[str], bool]
) -> Iterable[Command]:
    """Yield what is missing of a tenant that has a record: partitions, and the ring of them."""
    word, ring = tenant_word(store, name), find(store, RoutingMap, name)
    is_filed = entry is not None and not word.is_reborn
    if not word.is_served or (is_filed and not word.partitions):
        return
    said = word.settings.get("tenant_prg_count")
    wanted = int(said) if said is not None else len(word.partitions) or DEVELOPMENT_PRGS
    wanted = max(wanted, prgs_least(store, name))
    if wanted <= len(word.partitions) or (word.partitions and not settled(name)):
        return
    groups = (*word.partitions, *_fresh(store, word.partitions, name, wanted))
    missing = [each for each in groups if find(store, Placement, each) is None]
    for number, each in enumerate(missing):
        yield place(PartitionId(each), _voters(store, word.partitions, number), name)
    if not missing and ring is not None:
        yield _lay(name, ring, groups)


def _lay(name: str, ring: RoutingMap, groups: Iterable[int]) -> SetRoutingMap:
    return SetRoutingMap(
        tenant_id=name, partitions=tuple(groups), expected_routing_epoch=ring.routing_epoch
    )


def _fresh(store: DraftReading, held: tuple[int, ...], name: str, wanted: int) -> Iterable[int]:
    """Choose the numbers of the groups that a ring grows by: the same ones whenever asked."""
    if held:
        numbers = count(held[0])
    else:
        record = store.get(key_of(TenantSpec, name))
        assert record is not None
        numbers = count(group_of(FIRST_CONTROLLED_ORDINAL + record.create_revision, 0))
    return islice((each for each in numbers if each not in held), wanted - len(held))


def _voters(store: DraftReading, held: tuple[int, ...], number: int) -> Members:
    """Choose who carries a new partition: who carries the tenant's first one, else all nodes."""
    first = find(store, Placement, held[0]) if held else None
    if first is not None:
        return Members(voters=first.members.voters)
    nodes = [each.node_id for each in scan(store, NodeSpec) if each.state is NodeState.ACTIVE]
    turned = nodes[number % len(nodes) :] + nodes[: number % len(nodes)] if nodes else []
    return Members(voters=tuple(sorted(turned[:VOTERS_MAX])))


def placed_name(name: str) -> str:
    """Make up a server name for a tenant of the file; nobody has to use it."""
    label = name
    if not _HOST_LABEL.fullmatch(name):
        label = f"t-{sha256(name.encode()).hexdigest()[:32]}"
    return label + PLACED_SUFFIX
