"""One export round of a fleet, and the bootstrap of a new node."""

from __future__ import annotations

import asyncio
import enum
import logging
import shutil
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slipstream.artifact.files import new_stage
from slipstream.artifact.importing import import_artifact
from slipstream.artifact.lease import ExportLease, LeaseGuard
from slipstream.artifact.manifest import ExportManifest, ExportRequest
from slipstream.artifact.outcomes import ArtifactTransport, PublishedArtifact, PublishOutcome
from slipstream.errors import SlipstreamError
from slipstream.folds.store import SnapshotStore

logger = logging.getLogger(__name__)

# One time to live for publishers that may still refer to a payload, three for slow readers.
GRACE_IN_TTLS: Final = 4


class RoundOutcome(enum.Enum):
    """How a round ended for this node."""

    NOT_OURS = "another node exports"
    PUBLISHED = "published"
    SUPERSEDED = "superseded by newer"


@dataclass(frozen=True, slots=True)
class ExportRound:
    """A round as this node saw it; `manifest` is what it exported, if it did."""

    outcome: RoundOutcome
    manifest: ExportManifest | None = None


async def run_export_round(
    lease: ExportLease,
    exports: asyncio.Queue[ExportRequest],
    transport: ArtifactTransport,
    *,
    key: str,
    work_directory: Path,
    ttl_seconds: float,
) -> ExportRound:
    """Win the lease, export by way of the running watch, publish, complete, prune, clean up.

    The local artifact is gone afterwards, however it ended: as long as it stands it pins files
    that the fold has compacted away. A failed export or upload frees the round and is raised.
    """
    guard = await lease.try_acquire(ttl_seconds)
    if guard is None:
        return ExportRound(RoundOutcome.NOT_OURS)
    artifact = new_stage(work_directory / "export") / "artifact"
    try:
        published = await _export_and_upload(exports, transport, key, artifact)
    except BaseException:
        await _quietly("abandon the lease", guard.abandon())
        raise
    finally:
        await asyncio.to_thread(shutil.rmtree, artifact.parent, ignore_errors=True)
    if published.outcome is PublishOutcome.SUPERSEDED_BY_NEWER:
        await _quietly("abandon the lease", guard.abandon())
        return ExportRound(RoundOutcome.SUPERSEDED, published.manifest)
    await _finish(guard, transport, key, published.manifest)
    return ExportRound(RoundOutcome.PUBLISHED, published.manifest)


async def _export_and_upload(
    exports: asyncio.Queue[ExportRequest], transport: ArtifactTransport, key: str, artifact: Path
) -> PublishedArtifact:
    request = ExportRequest.to(artifact)
    await exports.put(request)
    await request.reply
    return await transport.upload(key, artifact)


async def _finish(
    guard: LeaseGuard, transport: ArtifactTransport, key: str, manifest: ExportManifest
) -> None:
    """Say what was done and tidy up; the artifact is published whether or not this works."""
    await _quietly("complete the lease", guard.complete(manifest.cursor))
    await _quietly("prune", transport.prune(key, GRACE_IN_TTLS * guard.ttl_seconds))


async def _quietly(what: str, work: Awaitable[object]) -> None:
    try:
        await work
    except (SlipstreamError, OSError) as error:
        logger.warning("could not %s: %s", what, error)


async def import_remote(
    transport: ArtifactTransport,
    key: str,
    destination: Path | str,
    backend: type[SnapshotStore],
) -> ExportManifest:
    """Make a fold of what is published: pointer, payload, verification, import."""
    destination = Path(destination)
    stage = new_stage(destination)
    try:
        await transport.download(key, stage / "artifact")
        return await asyncio.to_thread(import_artifact, stage / "artifact", destination, backend)
    finally:
        await asyncio.to_thread(shutil.rmtree, stage, ignore_errors=True)
