"""The numbers under which a partition's log was applied, where a source knows them."""

from __future__ import annotations

from pathlib import Path

from quantum.archive.types import PrgId
from quantum.broker import BrokerSettings
from quantum.lake.archive import LogSource
from quantum.lake.archive.directory_source import DirectorySource
from quantum.lake.judging import TopicOwner
from quantum.routing.ring import HashRing
from quantum.serving.broker_file import TenantEntry, read_broker_file
from quantum.serving.replaying import broker_settings
from quantum.types import TenantId


def settings_of(source: LogSource, prg: PrgId) -> BrokerSettings | None:
    """Return how the broker of a partition was set; None where the source does not say.

    Without them nobody can say what a full queue refused, so rows cannot be exact.
    """
    entry = _entry(source, prg.tenant)
    return None if entry is None else broker_settings(entry, prg.number)


def topic_owner(source: LogSource, prg: PrgId) -> TopicOwner:
    """Return which partition owns a topic, in a ring as large as the source shows it."""
    entry = _entry(source, prg.tenant)
    if entry is not None:
        count = entry.prgs
    else:
        count = len([each for each in source.prgs() if each.tenant == prg.tenant])
    ring, tenant = HashRing(), TenantId(prg.tenant)
    return lambda topic: ring.topic_partition(tenant, topic, count)


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
