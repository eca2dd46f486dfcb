"""The numbers under which a partition's log was applied, where a source knows them."""

from __future__ import annotations

from pathlib import Path

from quantum.archive.types import PrgId
from quantum.broker import BrokerSettings
from quantum.lake.archive import LogSource
from quantum.lake.archive.directory_source import DirectorySource
from quantum.routing.ring import HashRing
from quantum.serving.broker_file import TenantEntry, read_broker_file
from quantum.serving.replaying import broker_settings
from quantum.types import TenantId


def settings_of(source: LogSource, prg: PrgId) -> BrokerSettings | None:
    """Return how the broker of a partition was set; None where the source does not say."""
    entry = _entry(source, prg.tenant)
    return None if entry is None else broker_settings(entry, prg.number)


def _entry(source: LogSource, tenant: str) -> TenantEntry | None:
    asked = getattr(source, "tenant_entry", None)
    if asked is not None:
        found = asked(tenant)
        return found if isinstance(found, TenantEntry) else None
    if isinstance(source, DirectorySource):
        for entry in read_broker_file(Path(source.root)).tenants:
            if entry.name == tenant:
                return entry
    return None


def topic_owner(source: LogSource, prg: PrgId) -> tuple[int, HashRing]:
    """Return the ring of a tenant, as large as the source shows it."""
    entry = _entry(source, prg.tenant)
    if entry is not None:
        return entry.prgs, HashRing()
    return len([each for each in source.prgs() if each.tenant == prg.tenant]), HashRing()


def loose_owner_of(source: LogSource, prg: PrgId, topic: bytes) -> int:
    count, ring = topic_owner(source, prg)
    return ring.topic_partition(TenantId(prg.tenant), topic, count)
