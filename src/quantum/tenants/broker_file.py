"""`broker.json`: the tenants of a development cluster, beside its `cluster.json`.

Tenants are only ever added to it: first the development tenant, then those that `tenants.toml`
describes, when the broker is started with them for the first time. A cluster without it serves
no messages. It is also where a tenant's rings are decided: one place gives each routing epoch its
number of partitions, once, and every node follows it (quantumqtt §2.1.5, routing authority).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from clustor.runtime.data_directory import write_durably
from clustor.runtime.errors import DataDirectoryRefused
from quantum.tenancy import TenantDescription
from quantum.tenants.policy import TenantsFile

BROKER_FILE: Final = "broker.json"
DEVELOPMENT_TENANT: Final = "dev"
DEVELOPMENT_PRGS: Final = 3
PRGS_MAX: Final = 512
_LOCK_FILE: Final = "broker.lock"

journal = logging.getLogger("quantum.broker")


class TenantRing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant's ring from one routing epoch on; the partitions it adds begin with these voters.

    A new group must begin with the same voters on every node, so they are written down with it.
    """

    prg_count: int
    voters: tuple[int, ...] = ()


class TenantEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant; its place in the list numbers its groups, so entries are only ever added.

    What is here decides how committed commands are applied. It is written down once, because a
    replay under other numbers could refuse what was acknowledged.
    """

    name: str
    prgs: int
    queue_messages_max: int = 1_000
    queue_bytes_max: int = 64 << 20
    rings: tuple[TenantRing, ...] = ()
    """The rings that followed the first one: `rings[0]` is routing epoch 1."""
    dedupe_horizon_seconds: int = 259_200
    """How long a QoS 2 publish is remembered that its client does not release."""

    @property
    def prg_count(self) -> int:
        """How many partitions there are, or will be when the last change is over."""
        return self.rings[-1].prg_count if self.rings else self.prgs

    def voters(self, number: int) -> tuple[int, ...]:
        """Return with which voters a partition began; none for the founders of the cluster."""
        added = (ring.voters for ring in self.rings if number < ring.prg_count)
        return () if number < self.prgs else next(added, ())


class ArchiveEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where closed segments and snapshots go; see `quantum.node.archiving`."""

    url: str
    flush_seconds: float = 60.0
    hold_bytes_max: int = 2 << 30


class BackupsEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often points are made that the archive can be gone back to; see
    `quantum.node.backing_up`."""

    interval_seconds: Annotated[int, msgspec.Meta(ge=1)]
    keep_count: Annotated[int, msgspec.Meta(ge=1)] = 30
    keep_days: Annotated[int, msgspec.Meta(ge=0)] = 0


class TracesEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """That messages are traced; see `quantum.protocols.mqtt.session.traces`."""

    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    """How many of the publishes whose clients say nothing of a trace get one."""


class BrokerFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenants: tuple[TenantEntry, ...]
    format_version: int = 1
    archive: ArchiveEntry | None = None
    tls_records: Literal["openssl", "own"] = "openssl"
    """Who makes the records of clients' TLS, on every node of the cluster."""
    traces: TracesEntry | None = None
    tls_min: Literal["1.2", "1.3"] = "1.3"
    client_auth: Literal["none", "optional", "required"] = "required"
    password: Literal["off", "optional", "required"] = "optional"  # noqa: S105  # a policy's word
    wss: bool = False
    """Whether each node serves MQTT over WebSocket over TLS, too."""
    backups: BackupsEntry | msgspec.UnsetType = msgspec.UNSET
    """Not written where nobody asked for any: the release before refuses what it does not know."""


def read_broker_file(directory: Path) -> BrokerFile:
    """Read the tenants, none where there is no file. Raises DataDirectoryRefused."""
    path = directory / BROKER_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=BrokerFile)
    except FileNotFoundError:
        return BrokerFile(())
    except (OSError, msgspec.MsgspecError) as error:
        raise DataDirectoryRefused(
            "cannot read the broker's description", file=str(path), cause=error
        ) from error


def prepare_broker(directory: Path, wanted: TenantEntry | None) -> BrokerFile:
    """Describe the development tenant (None: there is none) and those of `tenants.toml`.

    Those that are there are taken up, and stay although nobody describes them any more. Raises
    DataDirectoryRefused where one was made with other numbers, or a description has mistakes.
    """
    known = read_broker_file(directory)
    tenants = {entry.name: entry for entry in known.tenants}
    made = tenants.get(DEVELOPMENT_TENANT)
    if made is not None and (wanted is None or not _is_same(made, wanted)):
        raise _other_numbers(directory, made)
    if wanted is not None:
        tenants.setdefault(wanted.name, wanted)
    for name, description in TenantsFile(directory).read().items():
        entry = tenants.setdefault(name, _described(name, description))
        if not _agree(entry, description):
            raise _other_numbers(directory, entry)
    described = msgspec.structs.replace(known, tenants=tuple(tenants.values()))
    if described != known:
        write_durably(directory / BROKER_FILE, msgspec.json.encode(described) + b"\n", 0o644)
    return described


def set_archive(directory: Path, url: str | None) -> BrokerFile:
    """Write down, durably, where a cluster archives to, from its nodes' next start on.

    None: nowhere, and what is archived already stays. The numbers beside an URL that is there
    already are left alone. Raises DataDirectoryRefused.
    """
    with (directory / _LOCK_FILE).open("ab") as lock:
        flock(lock, LOCK_EX)
        known = read_broker_file(directory)
        if (known.archive.url if known.archive is not None else None) == url:
            return known
        described = msgspec.structs.replace(
            known, archive=None if url is None else ArchiveEntry(url)
        )
        write_durably(directory / BROKER_FILE, msgspec.json.encode(described) + b"\n", 0o644)
        return described


def _described(name: str, description: TenantDescription) -> TenantEntry:
    quotas = description.policy.quotas
    return TenantEntry(
        name,
        description.prgs or DEVELOPMENT_PRGS,
        quotas.offline_messages_per_session,
        quotas.offline_bytes_per_session,
    )


def _is_same(made: TenantEntry, wanted: TenantEntry) -> bool:
    """Say whether a tenant is as it is wanted; its ring may have grown."""
    if wanted.prgs not in (made.prgs, made.prg_count):
        return False
    return made == msgspec.structs.replace(wanted, prgs=made.prgs, rings=made.rings)


def _agree(entry: TenantEntry, description: TenantDescription) -> bool:
    """Say whether a description asks for nothing else than what a tenant was made with."""
    if description.prgs not in (None, entry.prgs, entry.prg_count):
        return False
    if entry.name == DEVELOPMENT_TENANT:  # its queues are the settings' to say
        return True
    described = _described(entry.name, description)
    return entry == msgspec.structs.replace(described, prgs=entry.prgs, rings=entry.rings)


class GrowthRefused(Exception):
    """A tenant's ring cannot become what was asked for; the sentence says why."""


def grow_tenant(
    directory: Path, name: str, prg_count: int, voters: Iterable[int] = ()
) -> TenantEntry:
    """Write down, durably, that a tenant's next ring has so many partitions.

    The same count again is no change. Raises GrowthRefused, and DataDirectoryRefused where the
    file cannot be read.
    """
    with (directory / _LOCK_FILE).open("ab") as lock:
        flock(lock, LOCK_EX)  # two operators at two nodes: one after the other
        known = read_broker_file(directory)
        tenants = {entry.name: entry for entry in known.tenants}
        entry = tenants.get(name)
        if entry is None:
            raise GrowthRefused(f"there is no tenant {name}")
        if prg_count < entry.prg_count:
            raise GrowthRefused(
                f"a ring only grows: {name} has {entry.prg_count} partitions, not {prg_count}"
            )
        if prg_count > PRGS_MAX:
            raise GrowthRefused(f"a tenant has {PRGS_MAX} partitions at most")
        if prg_count == entry.prg_count:
            return entry
        ring = TenantRing(prg_count, tuple(sorted(voters)))
        tenants[name] = msgspec.structs.replace(entry, rings=(*entry.rings, ring))
        described = msgspec.structs.replace(known, tenants=tuple(tenants.values()))
        write_durably(directory / BROKER_FILE, msgspec.json.encode(described) + b"\n", 0o644)
        return tenants[name]


class RingsFile:
    """`broker.json`, looked at again and again for rings that grew."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._seen: tuple[int, int] | None = None
        self._complaint = ""

    def read_if_changed(self) -> BrokerFile | None:
        """Return what it says if it is another file than the last time, and can be read."""
        try:
            found = (self.directory / BROKER_FILE).stat()
            seen = (found.st_mtime_ns, found.st_ino)
            if seen == self._seen:
                return None
            described = read_broker_file(self.directory)
        except (OSError, DataDirectoryRefused) as error:
            self._complain(str(error))
            return None
        self._seen, self._complaint = seen, ""
        return described

    def _complain(self, problem: str) -> None:
        """Say what is wrong once, for it is looked at many times a second."""
        if problem != self._complaint:
            self._complaint = problem
            journal.error("the rings stay as they were: %s", problem)


def _other_numbers(directory: Path, there: TenantEntry) -> DataDirectoryRefused:
    return DataDirectoryRefused(
        "the tenant of this directory was made with other numbers",
        directory=str(directory),
        there=str(there),
    )


def development_tenant(prgs: int) -> TenantEntry | None:
    """Return the tenant of a development cluster; no partitions, no tenant."""
    return TenantEntry(DEVELOPMENT_TENANT, prgs) if prgs else None
