"""ThrottleEnvelope: why a write must wait, in at most 32 KiB of canonical JSON (§7.1, §13.2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum

import rfc8785

from clustor.flow.credits import Credits
from clustor.flow.lag import LagClass, LagVerdict
from clustor.log.types import DurabilityModeEpoch, PartitionId

IDS_MAX = 32
ID_CHARACTERS_MAX = 256
ENVELOPE_BYTES_MAX = 32 * 1024
SCHEMA_VERSION = 1
RETRY_AFTER_MIN_MS = 250


class ThrottleReason(StrEnum):
    APPLY_BUDGET = "ApplyBudget"
    WAL_DEVICE = "WALDevice"
    FOLLOWER_LAG = "FollowerLag"
    DISK_SOFT = "DiskSoft"
    DISK_HARD = "DiskHard"
    TENANT_QUOTA = "TenantQuota"
    FRAME_ALIGNMENT = "FrameAlignment"
    SNAPSHOT_IMPORT = "SnapshotImport"


class CreditHint(StrEnum):
    """Recover: credits return, send again soon. Hold: keep the pace. Shed: send less."""

    RECOVER = "Recover"
    HOLD = "Hold"
    SHED = "Shed"


class IngestStatus(StrEnum):
    HEALTHY = "Healthy"
    TRANSIENT_BACKPRESSURE = "TransientBackpressure"
    BLOCKED = "Blocked"


class DurabilityStatus(StrEnum):
    CONFIGURED = "Configured"
    STRICT_ONLY = "StrictOnly"


@dataclass(frozen=True, slots=True)
class IdPage:
    """Identifiers in lexicographic order, cut at 32; the token is where the next page begins."""

    ids: tuple[str, ...] = ()
    truncated_ids_count: int = 0
    continuation_token: str | None = None


def page_ids(ids: Iterable[str], after: str | None = None) -> IdPage:
    """Return the first page of `ids`, or the page that follows a continuation token."""
    ordered = sorted(set(ids))
    if after is not None:
        ordered = [one for one in ordered if one > after]
    page = tuple(ordered[:IDS_MAX])
    left = len(ordered) - len(page)
    return IdPage(page, left, page[-1] if left else None)


@dataclass(frozen=True, slots=True)
class ThrottleEnvelope:
    """One decision to slow or refuse writes, with everything that explains it."""

    generated_at: int  # milliseconds of the wall clock, given by the caller
    partition_id: PartitionId
    routing_epoch: int
    durability_mode_epoch: DurabilityModeEpoch
    reason: ThrottleReason
    credit_hint: CreditHint
    retry_after_ms: int
    backlog_entries: int
    backlog_bytes: int
    entry_credits: int
    byte_credits: int
    lag_duration_ms: int
    ingest_status_code: IngestStatus
    durability_status_code: DurabilityStatus
    decision_trace_id: str
    blocking: IdPage = IdPage()
    schema_version: int = SCHEMA_VERSION

    def encode(self) -> bytes:
        """Write canonical JSON; integers that may be wide are decimal strings (§8.2)."""
        members: dict[str, object] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, IdPage):
                members["ids"] = [one[:ID_CHARACTERS_MAX] for one in value.ids]
                members["truncated_ids_count"] = str(value.truncated_ids_count)
                if value.continuation_token is not None:
                    members["continuation_token"] = value.continuation_token[:ID_CHARACTERS_MAX]
            else:
                members[field.name] = str(value) if isinstance(value, int) else value
        encoded = rfc8785.dumps(members)  # type: ignore[arg-type]  # a dict of strings and lists of them
        assert len(encoded) <= ENVELOPE_BYTES_MAX, "bounded by the ids' number and length"
        return encoded


def hint_for(given: Credits, verdict: LagVerdict) -> CreditHint:
    """Say what a client should do: shed when little is given, hold when half is, else recover."""
    share = given.pid.fraction * verdict.credit_scale
    if verdict.lag_class is LagClass.STRUCTURAL or share <= 0.25:
        return CreditHint.SHED
    return CreditHint.HOLD if share < 0.75 else CreditHint.RECOVER


def ingest_status(given: Credits, verdict: LagVerdict) -> IngestStatus:
    if verdict.credit_scale == 0.0:
        return IngestStatus.BLOCKED
    short = given.entry_credits <= 0 or given.byte_credits <= 0
    return IngestStatus.TRANSIENT_BACKPRESSURE if short else IngestStatus.HEALTHY


def retry_after_ms(verdict: LagVerdict) -> int:
    """Return how long a client should wait, never below §11.1's 250 ms."""
    return RETRY_AFTER_MIN_MS * (4 if verdict.lag_class is LagClass.STRUCTURAL else 1)
