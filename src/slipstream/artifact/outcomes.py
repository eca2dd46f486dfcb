"""What a transport promises, and how a publication ends."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slipstream.artifact.manifest import ExportManifest


class PublishOutcome(enum.Enum):
    """How a publication ended; a slow exporter's normal end is the second."""

    PUBLISHED = "published"
    SUPERSEDED_BY_NEWER = "superseded by newer"


@dataclass(frozen=True, slots=True)
class PublishedArtifact:
    """What an upload did."""

    manifest: ExportManifest
    outcome: PublishOutcome


class ArtifactTransport(Protocol):
    """What carries artifacts between nodes."""

    async def upload(self, key: str, artifact: Path) -> PublishedArtifact:
        """Store the payload, then move the pointer to it unless a newer one is there."""

    async def download(self, key: str, directory: Path) -> ExportManifest:
        """Bring the published artifact into a new directory, verified."""

    async def pointer(self, key: str) -> ExportManifest | None:
        """Give what is published, None when nothing is."""

    async def prune(self, key: str, grace_seconds: float) -> int:
        """Delete payloads that can never be published again; give how many."""
