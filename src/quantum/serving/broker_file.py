"""`broker.json`: the tenants of a development cluster, beside its `cluster.json`.

Written once, when the cluster is made. A cluster without it serves no messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from clustor.runtime.data_directory import write_durably
from clustor.runtime.errors import DataDirectoryRefused

BROKER_FILE: Final = "broker.json"
DEVELOPMENT_TENANT: Final = "dev"
DEVELOPMENT_PRGS: Final = 3
PRGS_MAX: Final = 512


class TenantEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant; its place in the list numbers its groups, so entries are only ever added.

    What is here decides how committed commands are applied. It is written down once, because a
    replay under other numbers could refuse what was acknowledged.
    """

    name: str
    prgs: int
    queue_messages_max: int = 1_000
    queue_bytes_max: int = 64 << 20


class BrokerFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenants: tuple[TenantEntry, ...]
    format_version: int = 1


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
    """Describe the development tenant (None: there is none), or take up the one that is there.

    Raises DataDirectoryRefused where the directory's tenant was made with other numbers.
    """
    known = read_broker_file(directory)
    described = BrokerFile(() if wanted is None else (wanted,))
    if not known.tenants and described.tenants:
        write_durably(directory / BROKER_FILE, msgspec.json.encode(described) + b"\n", 0o644)
    elif known != described:
        raise DataDirectoryRefused(
            "the tenant of this directory was made with other numbers",
            directory=str(directory),
            there=str(known.tenants[0]),
        )
    return described


def development_tenant(prgs: int) -> TenantEntry | None:
    """Return the tenant of a development cluster; no partitions, no tenant."""
    return TenantEntry(DEVELOPMENT_TENANT, prgs) if prgs else None
