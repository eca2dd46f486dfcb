"""Overrides of the ledger on one node: obeyed, told of, and ended by its own clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from clustor.control import (
    CacheCursor,
    ClockReading,
    ControlCache,
    OverrideEntry,
    OverrideScope,
    Signature,
)
from clustor.control.objects import canonical
from clustor.kv import KvRecord, Revision, StoreId
from clustor.log.types import IoWriterMode
from clustor.raft.profiles import ControlPlaneNumbers
from clustor.runtime.control.overrides import OverridesInForce
from clustor.runtime.data_directory import DataDirectory, open_data_directory
from clustor.runtime.disk import Disk, open_disk
from clustor.runtime.pki.identity import NodeId, cluster_id
from clustor.security import AuditEvent
from tests.clustor.replica.harness import Cluster
from tests.clustor.runtime.hosting import GROUP, Host

NOW = ClockReading(1_000, 2_000_000)


def override(name: str, scope: OverrideScope, **changes: Any) -> OverrideEntry:
    members: dict[str, Any] = {
        "override_id": name,
        "scope": scope,
        "partitions": (),
        "actor_id": "spiffe://test/on-call",
        "ticket_url": "https://tickets/1",
        "justification": "a drill",
        "issued_at": 100,
        "expires_at": 10_000,
        "signature": Signature(key_id="k", signature=bytes(64)),
    }
    return OverrideEntry(**(members | changes))


class Place:
    """A node, as far as this looks at it."""

    def __init__(self, host: Host | None, *held: OverrideEntry) -> None:
        cache = ControlCache(ControlPlaneNumbers())
        records = [
            KvRecord(each.key(), canonical(each), Revision(n), Revision(n), 1, 0)
            for n, each in enumerate(sorted(held, key=lambda each: each.key()), 1)
        ]
        cache.listed(
            CacheCursor(StoreId(b"s" * 16), Revision(99)), records, asked=NOW, confirmed=True
        )
        self.control = type("Control", (), {"cache": cache})()
        self.groups = {} if host is None else {GROUP: host.group}
        self.audit = self
        self.told: list[tuple[str, str, str]] = []

    def note(self, event: AuditEvent) -> bool:
        self.told.append((event.what, event.outcome, event.object))
        return True


def looking(place: Place) -> OverridesInForce:
    return OverridesInForce(cast("Any", place))


def test_one_begins_and_ends_by_the_clock_and_both_are_told_once() -> None:
    place = Place(None, override("o1", OverrideScope.CREDIT))
    overrides = looking(place)
    for now_ms in (50, 100, 5_000, 9_999, 10_000, 20_000):
        overrides.look(now_ms)
        assert (list(overrides.active) == ["o1"]) is (100 <= now_ms < 10_000)
    assert place.told == [
        ("OverrideObeyed", "Began", "override/o1"),
        ("OverrideEnded", "Expired", "override/o1"),
    ]


def test_it_covers_its_partitions_and_is_named_to_who_asks_why() -> None:
    mine = override("mine", OverrideScope.CREDIT, partitions=(7,), expires_at=8_000)
    overrides = looking(Place(None, mine, override("all", OverrideScope.DURABILITY)))
    overrides.look(1_000)
    assert overrides.covering(OverrideScope.CREDIT, 7) == mine
    assert overrides.covering(OverrideScope.CREDIT, 8) is None
    assert overrides.words_for(8, 1_000) == "; override all (Durability) is obeyed for 9 s more"
    assert "override mine (Credit) is obeyed for 7 s more" in overrides.words_for(7, 1_000)


def test_a_waiver_is_of_scope_quarantine_and_for_everything() -> None:
    some = override("some", OverrideScope.QUARANTINE, partitions=(7,))
    whole = override("whole", OverrideScope.QUARANTINE)
    revoked = override("revoked", OverrideScope.QUARANTINE, revoked_at=200)
    overrides = looking(Place(None, some, whole, revoked, override("o", OverrideScope.CREDIT)))
    overrides.look(1_000)
    assert overrides.waivers(1_000) == [("whole", 9_000)]


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataDirectory]:
    found = open_data_directory(tmp_path / "node", cluster_id("dev"), NodeId(1))
    yield found
    found.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    found = open_disk(tmp_path, best=IoWriterMode.BLOCKING)
    yield found
    found.close()


def test_the_timer_of_a_leader_in_strict_fallback_stands_still_meanwhile(
    disk: Disk, data: DataDirectory
) -> None:
    """Clustor §9.1: 'unless a Break-Glass override renews the timer'."""
    host = Host(disk, data, Cluster(1).settings())
    replica = host.open().replica
    host.until(lambda: replica.leads)
    fallback = replica.group.fallback
    began = fallback.local_only_since_ms
    assert began is not None
    later = host.now_ms + 500
    host.until(lambda: host.now_ms >= later)
    overrides = looking(Place(host, override("o1", OverrideScope.DURABILITY)))
    overrides.look(10_000)
    assert fallback.local_only_since_ms == began, "its time is over"
    overrides.look(9_000)
    assert fallback.local_only_since_ms == replica.group.core.now_ms
    host.group.close()
