"""Flow control: writes are admitted only as fast as the slowest part that must hold them."""

from clustor.flow.credits import (
    STRICT_ONLY_BACKPRESSURE_MS,
    CreditLimits,
    Credits,
    strict_only_scale,
)
from clustor.flow.errors import FlowError, FlowMisuse, UnsafeGains
from clustor.flow.lag import LagClass, LagNumbers, LagVerdict, LagWatch, classify
from clustor.flow.pid import (
    GAINS_BY_PROFILE,
    LATENCY_GAINS,
    SAMPLE_PERIOD_MS,
    THROUGHPUT_GAINS,
    WAN_GAINS,
    Pid,
    PidGains,
)
from clustor.flow.throttle import (
    CreditHint,
    DurabilityStatus,
    IdPage,
    IngestStatus,
    ThrottleEnvelope,
    ThrottleReason,
    hint_for,
    ingest_status,
    page_ids,
    retry_after_ms,
)
from clustor.flow.tuner import AutoTuner, TunerNumbers, TuneState

__all__ = [
    "GAINS_BY_PROFILE",
    "LATENCY_GAINS",
    "SAMPLE_PERIOD_MS",
    "STRICT_ONLY_BACKPRESSURE_MS",
    "THROUGHPUT_GAINS",
    "WAN_GAINS",
    "AutoTuner",
    "CreditHint",
    "CreditLimits",
    "Credits",
    "DurabilityStatus",
    "FlowError",
    "FlowMisuse",
    "IdPage",
    "IngestStatus",
    "LagClass",
    "LagNumbers",
    "LagVerdict",
    "LagWatch",
    "Pid",
    "PidGains",
    "ThrottleEnvelope",
    "ThrottleReason",
    "TuneState",
    "TunerNumbers",
    "UnsafeGains",
    "classify",
    "hint_for",
    "ingest_status",
    "page_ids",
    "retry_after_ms",
    "strict_only_scale",
]
