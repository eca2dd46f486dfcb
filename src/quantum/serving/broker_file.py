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
    """A tenant; its place in the list numbers its groups, so entries are only ever added."""

    name: str
    prgs: int


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


def prepare_broker(directory: Path, prgs: int) -> BrokerFile:
    """Describe the development tenant, or take up the one that is there.

    Raises DataDirectoryRefused where the directory's tenant has another number of partitions.
    """
    known = read_broker_file(directory)
    wanted = BrokerFile((TenantEntry(DEVELOPMENT_TENANT, prgs),) if prgs else ())
    if not known.tenants and wanted.tenants:
        write_durably(directory / BROKER_FILE, msgspec.json.encode(wanted) + b"\n", 0o644)
    elif known != wanted:
        raise DataDirectoryRefused(
            "the tenant has another number of partitions",
            directory=str(directory),
            prgs=known.tenants[0].prgs,
        )
    return wanted
