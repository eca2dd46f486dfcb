"""The tenants of `broker.json` as the control plane must know them: a plan for its leader."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final

from clustor.control import (
    Command,
    CreateTenant,
    Members,
    Placement,
    Reading,
    RoutingMap,
    SetRoutingMap,
    TenantSpec,
    TenantTier,
    find,
)
from clustor.log.types import PartitionId
from clustor.runtime.control_records import members_of, place, unplaced
from clustor.runtime.node import Node
from quantum.serving.broker_file import BrokerFile, TenantEntry
from quantum.serving.groups import group_of

_HOST_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def tenant_records(
    broker: BrokerFile, members: Callable[[PartitionId], Members]
) -> Callable[[Reading], list[Command]]:
    """Plan every tenant, the placements of its partitions, and its ring."""

    def plan(store: Reading) -> list[Command]:
        return [
            command
            for ordinal, entry in enumerate(broker.tenants)
            for command in _of_tenant(store, entry, ordinal, members)
        ]

    return plan


def record_tenants(node: Node, broker: BrokerFile) -> None:
    """Let the control plane's leader record the tenants, if the cluster has a control plane."""
    if node.control is not None and broker.tenants:
        node.control.ensure(
            tenant_records(
                broker,
                lambda each: members_of(node.groups[each].replica.group.core.hard.membership),
            )
        )


def _of_tenant(
    store: Reading, entry: TenantEntry, ordinal: int, members: Callable[[PartitionId], Members]
) -> Iterable[Command]:
    """Yield what is missing of one tenant; the ring is laid when everything is placed."""
    if find(store, TenantSpec, entry.name) is None:
        yield CreateTenant(
            tenant_id=entry.name,
            sni=f"{_label(entry.name)}.tenants.local",
            tier=TenantTier.DEVELOPMENT,
        )
        return
    groups = [group_of(ordinal, number) for number in range(entry.prg_count)]
    missing = list(unplaced(store, {each: members(each) for each in groups}))
    for partition_id, voters in missing:
        yield place(partition_id, voters, entry.name)
    ring = find(store, RoutingMap, entry.name)
    placed = all(find(store, Placement, each) is not None for each in groups)
    if placed and ring is not None and len(ring.partitions) < len(groups):  # it only grows
        yield SetRoutingMap(
            tenant_id=entry.name,
            partitions=tuple(groups),
            expected_routing_epoch=ring.routing_epoch,
        )


def _label(name: str) -> str:
    """Make a host's label of a tenant's name; of most names it is the name."""
    if _HOST_LABEL.fullmatch(name):
        return name
    return f"t-{sha256(name.encode()).hexdigest()[:32]}"
