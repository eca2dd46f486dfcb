"""Admission: a leader takes no more commands than its disk, its quorum and its followers hold.

The controllers are `clustor.flow`'s; here they get what they look at, and what they decide is
carried out (clustor §10.6). Everything is looked at once per sample period; a command costs a
comparison, a tick costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from clustor.flow import (
    GAINS_BY_PROFILE,
    SAMPLE_PERIOD_MS,
    STRICT_ONLY_BACKPRESSURE_MS,
    AutoTuner,
    CreditLimits,
    Credits,
    DurabilityStatus,
    LagClass,
    LagNumbers,
    LagVerdict,
    LagWatch,
    ThrottleEnvelope,
    ThrottleReason,
    classify,
    hint_for,
    ingest_status,
    page_ids,
    retry_after_ms,
    strict_only_scale,
)
from clustor.log.types import IoWriterMode
from clustor.raft.control_plane import CacheState
from clustor.raft.group_fsync import QUARANTINE_FLAG
from clustor.raft.membership import MemberKind
from clustor.raft.progress import Progress
from clustor.raft.types import ReplicaId
from clustor.replica import Replica
from clustor.runtime.disk.policy import CREDIT_SHARE, DiskLevel, DiskNumbers

UNHEARD_MS_MAX: Final = 1_000
"""For so long a new leader does not wonder about a follower that it has not heard yet."""


@dataclass(frozen=True, slots=True)
class FlowNumbers:
    """What a deployment may tighten."""

    credits: CreditLimits = CreditLimits()
    lag: LagNumbers = LagNumbers()
    structural_override: bool = False
    structural_hard_block: bool = False
    strict_only_ms_max: int = STRICT_ONLY_BACKPRESSURE_MS
    disk: DiskNumbers = DiskNumbers()


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one follower is behind, as far as its leader knows."""

    lag_bytes: int
    lag_ms: int
    lag_class: LagClass


class GroupAdmission:
    """The flow control of one group on one node. It only ever refuses while its replica leads."""

    def __init__(self, replica: Replica, numbers: FlowNumbers) -> None:
        profile = replica.settings.profile
        self._replica = replica
        self._numbers = numbers
        self._latency_max_ms = profile.device.latency_max_ms
        self._quorum_ms_max = profile.election_timeout_ms[1]
        gains = GAINS_BY_PROFILE[profile.name]
        self.credits = Credits(gains, numbers.credits)
        self.tuner = AutoTuner(profile.name, gains)
        self.disk = DiskLevel.ROOM
        self._may_tune = True  # without a control plane there is no gate
        self._overridden = False  # by a signed override: see `override_structural`
        self._watch = self._new_watch()
        self.verdict = self._calm()
        """Of the lag; its share of the credits is also the disk's."""
        self._term = 0
        self._now_ms = 0
        self._due_ms = 0
        self._clamped = False
        self._under_way = False  # something was admitted since nothing was under way
        self._lacked: dict[ReplicaId, int] = {}  # bytes, when it was last looked at
        self._waits_from = (0, 0)  # an index, and when it was seen that it is not yet safe
        self._pressures: dict[ThrottleReason, float] = {}
        self._encoded: bytes | None = None
        self.refused_total = 0
        self.credits.scale(self.verdict.credit_scale)

    def _new_watch(self) -> LagWatch:
        watch = LagWatch(self._numbers.lag)
        watch.structural_override = self._overridden or self._numbers.structural_override
        watch.structural_hard_block = self._numbers.structural_hard_block
        return watch

    def _calm(self) -> LagVerdict:
        share = 0.0 if self._numbers.structural_hard_block else 1.0
        return LagVerdict(LagClass.NONE, share * CREDIT_SHARE[self.disk])

    def allow_tuning(self, *, allowed: bool) -> None:
        """Open or close the gate of the auto-tuner; shut, the profile's gains hold."""
        self._may_tune = allowed

    def override_structural(self, *, active: bool) -> None:
        """Let a leader stay although a lag is structural, or let it step down again (§10.6)."""
        self._overridden = active
        self._watch.structural_override = active or self._numbers.structural_override

    # Commands.

    def admit(self, size_bytes: int) -> bool:
        """Take credits for one command, or refuse it; `refusal` then says why."""
        self._under_way = True
        if self.credits.admit(1, size_bytes) or not self._replica.leads:
            return True
        self.refused_total += 1
        return False

    def measure(self) -> None:
        """Count what is under way, after a turn; nothing to do where nobody asked."""
        if self._under_way:
            entries, size_bytes = self._replica.backlog()
            self.credits.measure(entries, size_bytes)
            self._under_way = entries > 0

    def use_disk(self, level: DiskLevel) -> None:
        """Give fewer credits, or none, while the disk is nearly full; at once, in any state."""
        if level is self.disk:
            return
        self.disk = level
        self._encoded = None
        verdict = self.verdict
        if verdict.lag_class is LagClass.NONE:
            self.verdict = self._calm()
            self.credits.scale(self.verdict.credit_scale)
        else:
            self._due_ms = 0  # the next look weighs it with the lag

    def _with_disk(self, verdict: LagVerdict) -> LagVerdict:
        share = CREDIT_SHARE[self.disk] * self._strict_share()
        return replace(verdict, credit_scale=verdict.credit_scale * share)

    def _strict_share(self) -> float:
        """Halve the credits of a leader that was alone in Strict for long (§6.3)."""
        since_ms = self._replica.group.fallback.local_only_since_ms
        if since_ms is None:
            return 1.0
        return strict_only_scale(self._now_ms - since_ms, self._numbers.strict_only_ms_max)

    # Time.

    def tick(self, now_ms: int) -> str | None:
        """Look at disk, quorum and followers when it is time; return news for people."""
        self._now_ms = now_ms
        self._encoded = None
        self.credits.renew_quantum()
        if now_ms < self._due_ms:
            return None
        self._due_ms = now_ms + SAMPLE_PERIOD_MS
        led, self._term = self._term, self._replica.group.core.hard.term
        if not self._replica.leads or led != self._term:
            self._rest()
        return self._look(now_ms) if self._replica.leads else None

    def _look(self, now_ms: int) -> str | None:
        if self._is_idle():
            self._waits_from = (self._replica.group.core.log.last_index, now_ms)
            return None
        before = self.verdict.lag_class
        worst = max((lag.lag_bytes for lag in self.lags().values()), default=0)
        self.verdict = self._with_disk(self._watch.sample(worst, now_ms))
        self._pressures = self._measure_pressures()
        self.credits.scale(self.verdict.credit_scale)
        self.credits.tick(now_ms, max(self._pressures.values()))
        self._tune()
        self._carry_out(self.verdict)
        return None if self.verdict.lag_class is before else self._words()

    def _is_idle(self) -> bool:
        """Say whether there is nothing to see: most of a node's many groups do nothing."""
        core = self._replica.group.core
        last = core.log.last_index
        return (
            core.wal_committed_index == last
            and self.verdict.lag_class is LagClass.NONE
            and self.credits.pid.fraction == 1.0
            and all(
                progress.match_index == last or member == core.id
                for member, progress in core.progress.items()
            )
        )

    def _rest(self) -> None:
        """Forget a term that was led: the next one looks anew."""
        self._watch = self._new_watch()
        self.verdict = self._calm()
        self.credits.scale(self.verdict.credit_scale)
        self.credits.tick(self._now_ms, 0.0)
        self._clamp(strict=False)
        self._pressures = {}
        self._lacked = {}
        self._waits_from = (0, self._now_ms)

    def _measure_pressures(self) -> dict[ThrottleReason, float]:
        """Compare with what is bearable: 1.0 is just so. The reason is what is worst."""
        core = self._replica.group.core
        write_ms = self._replica.group.durability.oldest_write_age_ms()
        index, since_ms = self._waits_from
        if core.wal_committed_index >= index:
            since_ms = self._now_ms
            self._waits_from = (core.log.last_index, since_ms)
        unapplied = core.wal_committed_index - self._replica.applied_index
        return {
            ThrottleReason.WAL_DEVICE: write_ms / self._latency_max_ms,
            ThrottleReason.FOLLOWER_LAG: (self._now_ms - since_ms) / self._quorum_ms_max,
            ThrottleReason.APPLY_BUDGET: unapplied / self._numbers.credits.entry_credit_max,
        }

    def _tune(self) -> None:
        group = self._replica.group
        self.credits.pid.gains = self.tuner.sample(
            self.credits.pid.error,
            fixed_uring=group.core.io_writer_mode is IoWriterMode.FIXED_URING,
            cache_fresh=self._may_tune and group.access.cache is CacheState.FRESH,
        )

    def _carry_out(self, verdict: LagVerdict) -> None:
        group = self._replica.group
        self._clamp(strict=verdict.force_strict)
        if verdict.trigger_snapshot:
            group.request_snapshot()
        if verdict.step_down:
            group.step_down("structural lag")

    def _clamp(self, *, strict: bool) -> None:
        """Hold the leader's disk in Strict while a lag is structural, and let go of it again."""
        if strict != self._clamped:
            flags = self._replica.group.leadership.incident_flags
            (flags.add if strict else flags.discard)(QUARANTINE_FLAG)
            self._clamped = strict

    def _words(self) -> str:
        behind = [f"{name} by {lag.lag_bytes} bytes" for name, lag in self._behind().items()]
        return f"lag {self.verdict.lag_class}: {', '.join(behind) or 'nobody is behind'}"

    # Followers.

    def lags(self) -> dict[ReplicaId, Lag]:
        """Return how far each voter is behind; a leader knows, others know of nobody."""
        core = self._replica.group.core
        return {
            member: self.lag_of(member, progress)
            for member, progress in core.progress.items()
            if member != core.id and progress.kind is MemberKind.VOTER
        }

    def lag_of(self, member: ReplicaId, progress: Progress) -> Lag:
        """Judge one follower, whatever its kind is."""
        core = self._replica.group.core
        since_ms = progress.behind_since_ms
        lag_ms = 0 if since_ms is None else core.now_ms - since_ms
        lag_bytes = self._lag_bytes(member, progress)
        return Lag(lag_bytes, lag_ms, classify(lag_bytes, lag_ms, self._numbers.lag))

    def _lag_bytes(self, member: ReplicaId, progress: Progress) -> int:
        core, slack = self._replica.group.core, self._numbers.lag.slack_bytes
        log = core.log
        if progress.echoed_ms < 0:
            # Never heard: nobody knows what it has, only for how long it has been silent.
            unheard_ms = core.now_ms - core.leader_since_ms
            return 0 if unheard_ms <= UNHEARD_MS_MAX else slack + 1
        known = log.bytes_through(core.commit_index) - log.bytes_through(progress.match_index)
        if progress.match_index < log.base_index:
            # It needs a snapshot: that the log was compacted does not bring it any nearer.
            known = max(known, slack + 1, self._lacked.get(member, 0))
        self._lacked[member] = known
        return known

    def _behind(self) -> dict[str, Lag]:
        return {
            f"replica-{member}": lag
            for member, lag in sorted(self.lags().items())
            if lag.lag_class is not LagClass.NONE
        }

    # Words.

    @property
    def numbers(self) -> FlowNumbers:
        return self._numbers

    @property
    def pressures(self) -> Mapping[ThrottleReason, float]:
        """What was compared at the last look: 1.0 is just bearable."""
        return self._pressures

    @property
    def reason(self) -> ThrottleReason | None:
        """Why commands are slowed or refused now; None where none would be."""
        if self.disk is DiskLevel.HARD:
            return ThrottleReason.DISK_HARD
        worst = max(self._pressures, key=lambda each: self._pressures[each], default=None)
        if worst is not None and self._pressures[worst] > 1.0:
            return worst
        if self.verdict.lag_class is not LagClass.NONE:
            return ThrottleReason.FOLLOWER_LAG
        if self.disk is DiskLevel.SOFT:
            return ThrottleReason.DISK_SOFT
        short = self.credits.entry_credits <= 0 or self.credits.byte_credits <= 0
        return ThrottleReason.APPLY_BUDGET if short and self._replica.leads else None

    def refusal(self, wall_ms: int) -> bytes:
        """Return the envelope for a refused command; all of one tick share it."""
        if self._encoded is None:
            self._encoded = self.envelope(wall_ms).encode()
        return self._encoded

    def envelope(self, wall_ms: int) -> ThrottleEnvelope:
        replica = self._replica
        core = replica.group.core
        entries, size_bytes = replica.backlog()
        behind = self._behind()
        strict = replica.group.leadership.must_write_strict()
        return ThrottleEnvelope(
            generated_at=wall_ms,
            partition_id=replica.identity.partition_id,
            routing_epoch=core.hard.routing_epoch,
            durability_mode_epoch=core.hard.durability_mode_epoch,
            reason=self.reason or ThrottleReason.APPLY_BUDGET,
            credit_hint=hint_for(self.credits, self.verdict),
            retry_after_ms=retry_after_ms(self.verdict),
            backlog_entries=entries,
            backlog_bytes=size_bytes,
            entry_credits=self.credits.entry_credits,
            byte_credits=self.credits.byte_credits,
            lag_duration_ms=max((lag.lag_ms for lag in behind.values()), default=0),
            ingest_status_code=ingest_status(self.credits, self.verdict),
            durability_status_code=(
                DurabilityStatus.STRICT_ONLY if strict else DurabilityStatus.CONFIGURED
            ),
            decision_trace_id=f"{core.id}-{core.hard.term}-{self._now_ms}",
            blocking=page_ids(behind),
        )
