"""An archive's two places: tenants' partitions, and below them the cluster's own groups."""

from __future__ import annotations

from dataclasses import dataclass

from quantum.archive.names import groups_url
from quantum.archive.objects import Objects, open_objects


@dataclass(frozen=True, slots=True)
class ArchiveRoots:
    """Where an archive's objects are; backups stand beside the tenants."""

    tenants: Objects
    groups: Objects


def open_roots(url: str) -> ArchiveRoots:
    """Open both; raises ArchiveMisuse."""
    return ArchiveRoots(open_objects(url), open_objects(groups_url(url)))
