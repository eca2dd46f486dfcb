"""The lake's jobs, for a notebook by one import: each is what `quantum lake JOB` runs."""

from quantum.lake.jobs.audit import Audited, EventQuestion, audit
from quantum.lake.jobs.backfill import Backfilled, backfill
from quantum.lake.jobs.compact import CompactedFiles, clean, compact
from quantum.lake.jobs.delta import mirror_to_delta
from quantum.lake.jobs.errors import (
    BadResume,
    BadView,
    JobError,
    PackageMissing,
    SparkFailed,
    StateTaken,
    StateUnknown,
)
from quantum.lake.jobs.iceberg import mirror_to_iceberg
from quantum.lake.jobs.ingest import IngestReport, IngestSettings, ingest
from quantum.lake.jobs.progress import Progress, Step, silence
from quantum.lake.jobs.reading import read_dead_letters, read_table, read_view
from quantum.lake.jobs.replay import (
    Divergence,
    ReplayedPartition,
    ReplayLimit,
    find_divergences,
    replay,
    state_at,
)
from quantum.lake.jobs.report import report
from quantum.lake.jobs.resuming import ResumingRunner, resuming
from quantum.lake.jobs.runner import InlineRunner, Runner, SparkRunner
from quantum.lake.jobs.simulate import Fleet, Simulated, loads_of, simulate
from quantum.lake.jobs.state_tables import write_state
from quantum.lake.jobs.usage import UsageLimits, breaches, read_limits, usage, usage_of_tenants
from quantum.lake.jobs.verify import TableVerdict, verify
from quantum.lake.jobs.views import View, read_views

__all__ = [
    "Audited",
    "Backfilled",
    "BadResume",
    "BadView",
    "CompactedFiles",
    "Divergence",
    "EventQuestion",
    "Fleet",
    "IngestReport",
    "IngestSettings",
    "InlineRunner",
    "JobError",
    "PackageMissing",
    "Progress",
    "ReplayLimit",
    "ReplayedPartition",
    "ResumingRunner",
    "Runner",
    "Simulated",
    "SparkFailed",
    "SparkRunner",
    "StateTaken",
    "StateUnknown",
    "Step",
    "TableVerdict",
    "UsageLimits",
    "View",
    "audit",
    "backfill",
    "breaches",
    "clean",
    "compact",
    "find_divergences",
    "ingest",
    "loads_of",
    "mirror_to_delta",
    "mirror_to_iceberg",
    "read_dead_letters",
    "read_limits",
    "read_table",
    "read_view",
    "read_views",
    "replay",
    "report",
    "resuming",
    "silence",
    "simulate",
    "state_at",
    "usage",
    "usage_of_tenants",
    "verify",
    "write_state",
]
