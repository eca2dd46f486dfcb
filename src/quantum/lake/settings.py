"""The numbers under which a partition's log was applied, where anybody knows them.

They are not in the log: a broker's `broker.json` has them. Without them nobody can say what a full
queue refused, so rows are not exact (`logged`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quantum.archive.types import PrgId
from quantum.broker import BrokerSettings
from quantum.lake.archive import LogSource
from quantum.lake.archive.directory_source import DirectorySource
from quantum.lake.errors import BadAddress
from quantum.tenants.broker_file import BROKER_FILE, TenantEntry, read_broker_file
from quantum.tenants.partition_settings import broker_settings


def tenant_entry(source: LogSource, prg: PrgId, broker: str | None) -> TenantEntry | None:
    """Return how a tenant was made; `broker` is a directory with a `broker.json`, where given.

    A source that knows has a method `tenant_entry(name)` of its own. Raises BadAddress where the
    directory does not describe the tenant.
    """
    asked = getattr(source, "tenant_entry", None)
    if broker is None and asked is not None:
        found = asked(prg.tenant)
        return found if isinstance(found, TenantEntry) else None
    if broker is None and isinstance(source, DirectorySource):
        broker = source.root
    if broker is None:
        return None
    directory = Path(broker).parent if Path(broker).name == BROKER_FILE else Path(broker)
    for entry in read_broker_file(directory).tenants:
        if entry.name == prg.tenant:
            return entry
    raise BadAddress("no broker.json here describes the tenant", prg=prg, directory=str(directory))


def topic_owner_of(
    source: LogSource, prg: PrgId, broker: str | None
) -> Callable[[bytes], int] | None:
    """Return who owns which topic, where that never changed; None where nobody can say."""
    entry = tenant_entry(source, prg, broker)
    if entry is None or entry.rings:
        return None
    settings = broker_settings(entry, prg.number)
    return lambda topic: settings.topic_partition(topic, settings.prg_count)


def settings_of(source: LogSource, prg: PrgId, broker: str | None) -> BrokerSettings | None:
    """Return how the broker of a partition was set; None where nobody says."""
    entry = tenant_entry(source, prg, broker)
    return None if entry is None else broker_settings(entry, prg.number)
