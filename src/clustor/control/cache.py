"""A node's copy of the control plane: folded from a watch, aged by the node's own clock.

Its age is the time since a *confirmed* answer was asked for: one that the control plane's leader
gave behind an entry of its own term. A replica that was cut off would answer polls for ever, and
nothing that it says makes the copy younger; what it says is folded all the same, because every
revision is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from clustor.control.cache_image import CacheImage
from clustor.control.draft import find
from clustor.control.key_epochs import KeyEpochs
from clustor.control.objects import decode_object, key_of
from clustor.control.placement import MembershipRecord, Placement
from clustor.control.proofs import (
    ConflictCleared,
    ProofConflict,
    ProofTuple,
    PublishedProof,
    proof_verifies,
)
from clustor.control.refresh import refresh_delay_ms
from clustor.control.signing import Signature
from clustor.kv import (
    Events,
    EventsCompacted,
    Key,
    KvRecord,
    NotYet,
    OrderedKeys,
    RecordPage,
    Revision,
    StoreId,
)
from clustor.log.types import DurabilityModeEpoch, PartitionId
from clustor.raft.control_plane import (
    CacheState,
    ControlPlaneUpdate,
    ControlPlaneView,
    VerifiedProof,
)
from clustor.raft.hard_state import MembershipAck
from clustor.raft.profiles import ControlPlaneNumbers
from clustor.raft.types import RoutingEpoch

UNWATCHED: Final = (b"audit/", b"user/", b"slipstream/")
"""What a node's copy leaves out."""

OF_TENANTS: Final = (
    b"tenant/",
    b"sni/",
    b"quota/",
    b"acl/",
    b"certificate/",
    b"routing/",
    b"placement/",
    b"quarantine/",
    b"config/",
    b"config_head/",
)
"""What a broker acts on."""

_NEVER: Final = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A reading of both clocks: ages go by the first, stamps are of the second."""

    monotonic_ms: int
    unix_ms: int


@dataclass(frozen=True, slots=True)
class CacheCursor:
    """Where the watch goes on; it means something in this store only."""

    store_id: StoreId
    revision: Revision


@dataclass(frozen=True, slots=True)
class PartitionWord:
    """What the control plane says to one group; the driver hands it on in this order.

    `reconciled` first: the group forgets a proof conflict. Then each update; of a conflict that
    stands there are two, one for each proof, so that the group sees it with its own eyes.
    """

    reconciled: bool
    updates: tuple[ControlPlaneUpdate, ...]
    membership_ack: MembershipAck | None


class ControlCache:
    """The copy of one node. Objects are read from it with `find` and `scan`."""

    def __init__(self, numbers: ControlPlaneNumbers) -> None:
        self._numbers = numbers
        self._view = ControlPlaneView(numbers)  # knows the states by age
        self._records: dict[Key, KvRecord] = {}
        self._keys = OrderedKeys()
        self.cursor: CacheCursor | None = None  # None: list everything first
        self.tenants_revision = 0  # of the newest change to what a broker acts on
        self.confirmed_unix_ms: int | None = None
        self.cache_expiry_total = 0
        self.bad_proofs = 0
        self._was_expired = True
        self._highest_epochs = _NEVER
        self._verified: dict[int, tuple[Revision, bool]] = {}
        self._told_cleared: dict[int, Revision] = {}

    # What the watch brings.

    def listed(
        self,
        cursor: CacheCursor,
        records: Iterable[KvRecord],
        *,
        asked: ClockReading,
        confirmed: bool,
    ) -> None:
        """Replace the copy by a listing: the first one, or after the history was compacted."""
        self._records, self._keys = {}, OrderedKeys()
        self._verified.clear()
        for record in records:
            self._fold(record)
        self.cursor = cursor
        self.tenants_revision = cursor.revision  # what is not listed was deleted
        self._heard(asked, confirmed=confirmed)

    def polled(
        self,
        answer: Events | EventsCompacted | NotYet,
        *,
        store_id: StoreId,
        asked: ClockReading,
        confirmed: bool,
    ) -> None:
        """Take the answer to a poll from the cursor; what was seen before is passed over.

        Where the cursor means nothing any more it is dropped, and everything must be listed:
        the history behind it was compacted, the store is another, or its confirmed newest
        revision is behind the cursor, as after a restore. What is held stays in use, and ages.
        """
        assert self.cursor is not None, "list first"
        rewound = isinstance(answer, NotYet) and confirmed
        if store_id != self.cursor.store_id or isinstance(answer, EventsCompacted) or rewound:
            self.cursor = None
        elif isinstance(answer, Events):
            self._fold_all(answer, self.cursor)
            self._heard(asked, confirmed=confirmed and not answer.more)

    def _fold_all(self, events: Events, cursor: CacheCursor) -> None:
        for event in events.events:
            if event.mod_revision > cursor.revision:
                self._fold(event)
        revision = max(cursor.revision, events.through)
        self.cursor = CacheCursor(cursor.store_id, Revision(revision))

    def _fold(self, record: KvRecord) -> None:
        if record.key.startswith(UNWATCHED):
            return
        if record.key.startswith(OF_TENANTS):
            self.tenants_revision = max(self.tenants_revision, record.mod_revision)
        held = record.key in self._records
        if record.is_delete:
            if held:
                del self._records[record.key]
                self._keys.remove(record.key)
            return
        self._records[record.key] = record
        if not held:
            self._keys.add(record.key)
        if record.key == key_of(KeyEpochs, "newest"):
            epochs = decode_object(KeyEpochs, record.value).parts()
            self._highest_epochs = _highest(self._highest_epochs, epochs)

    def _heard(self, asked: ClockReading, *, confirmed: bool) -> None:
        if not confirmed:
            return
        age_ms = self._view.cache_age_ms(asked.monotonic_ms)
        if age_ms is None or age_ms > 0:
            self._view.update(ControlPlaneUpdate(), asked.monotonic_ms)
            self.confirmed_unix_ms = asked.unix_ms

    # How old it is.

    def age_ms(self, now: ClockReading) -> int | None:
        """Return the time since the copy was known to be whole; None: never."""
        return self._view.cache_age_ms(now.monotonic_ms)

    def state(self, now: ClockReading) -> CacheState:
        """Name the state by age, and count an expiry when it is first seen."""
        state = self._view.cache_state(now.monotonic_ms)
        is_expired = state is CacheState.EXPIRED
        if is_expired and not self._was_expired:
            self.cache_expiry_total += 1
        self._was_expired = is_expired
        return state

    def refresh_delay_ms(self, now: ClockReading) -> int:
        """Say how long to wait before the next attempt (clustor §14.2)."""
        age_ms = self.age_ms(now)
        age_ms = self._numbers.cache_grace_ms if age_ms is None else age_ms
        return refresh_delay_ms(self.state(now), age_ms, self._numbers)

    # What it says.

    def get(self, key: Key) -> KvRecord | None:
        return self._records.get(key)

    def range(self, start: bytes, end: bytes | None, limit: int) -> RecordPage:
        revision = self.cursor.revision if self.cursor is not None else Revision(0)
        records: list[KvRecord] = []
        for key in self._keys.between(start, end):
            if len(records) >= limit:
                return RecordPage(revision, records, more=True)
            records.append(self._records[key])
        return RecordPage(revision, records, more=False)

    @property
    def key_epoch_replay(self) -> bool:
        """Whether a key epoch is lower than one that was seen before (clustor §12.2)."""
        held = find(self, KeyEpochs, "newest")
        epochs = held.parts() if held is not None else _NEVER
        return _highest(epochs, self._highest_epochs) != epochs

    def word_for(self, partition_id: PartitionId, now: ClockReading) -> PartitionWord | None:
        """Say to a group what the control plane says; None while it was never heard."""
        age_ms = self.age_ms(now)
        if age_ms is None:
            return None
        placement = find(self, Placement, partition_id)
        word = ControlPlaneUpdate(
            cache_age_ms=age_ms,
            follower_read_snapshot_capability=placement is not None
            and placement.follower_read_snapshot_capability,
            key_epoch_replay=self.key_epoch_replay,
        )
        proofs = self._proofs(partition_id, now)
        updates = tuple(replace(word, proof=proof) for proof in proofs) or (word,)
        return PartitionWord(self._reconciled(partition_id), updates, self._ack(partition_id))

    def _proofs(self, partition_id: PartitionId, now: ClockReading) -> Iterator[VerifiedProof]:
        conflict = find(self, ProofConflict, partition_id)
        if conflict is not None:
            for each in (conflict.held, conflict.rival):
                if proof_verifies(self, each.proof, each.controlplane_signature):
                    yield _verified(each.proof, now)
            return
        record = self.get(key_of(PublishedProof, partition_id))
        if record is None:
            return
        published = decode_object(PublishedProof, record.value)
        if self._verifies(record, published.proof, published.controlplane_signature):
            yield _verified(published.proof, now)

    def _verifies(self, record: KvRecord, proof: ProofTuple, signature: Signature) -> bool:
        """Verify a proof once per revision of it."""
        known = self._verified.get(proof.partition_id)
        if known is not None and known[0] == record.mod_revision:
            return known[1]
        good = proof_verifies(self, proof, signature)
        self.bad_proofs += not good
        self._verified[proof.partition_id] = (record.mod_revision, good)
        return good

    def _reconciled(self, partition_id: PartitionId) -> bool:
        """Say once for each clearing that the group shall forget its conflict."""
        record = self.get(key_of(ConflictCleared, partition_id))
        if record is None or self._told_cleared.get(partition_id) == record.mod_revision:
            return False
        self._told_cleared[partition_id] = record.mod_revision
        return True

    def _ack(self, partition_id: PartitionId) -> MembershipAck | None:
        held = find(self, MembershipRecord, partition_id)
        if held is None:
            return None
        return MembershipAck(
            RoutingEpoch(held.routing_epoch),
            held.membership_digest,
            DurabilityModeEpoch(held.durability_mode_epoch),
        )

    # The copy that outlives the process.

    def image(self) -> CacheImage:
        """Give everything that a restart needs; `encode_image` makes bytes of it."""
        assert self.cursor is not None, "there is nothing whole to keep"
        return CacheImage(
            store_id=self.cursor.store_id,
            revision=self.cursor.revision,
            confirmed_unix_ms=self.confirmed_unix_ms,
            highest_epochs=self._highest_epochs,
            records=[self._records[key] for key in self._keys.between(b"", None)],
        )

    @classmethod
    def from_image(
        cls, numbers: ControlPlaneNumbers, image: CacheImage, now: ClockReading
    ) -> ControlCache:
        """Go on from a copy. Its age is what the clock on the wall says, if that is believable."""
        cache = cls(numbers)
        for record in image.records:
            cache._fold(record)
        cache.cursor = CacheCursor(image.store_id, image.revision)
        cache._highest_epochs = _highest(cache._highest_epochs, image.highest_epochs)
        cache.confirmed_unix_ms = image.confirmed_unix_ms
        if image.confirmed_unix_ms is not None and image.confirmed_unix_ms <= now.unix_ms:
            age_ms = now.unix_ms - image.confirmed_unix_ms
            cache._view.update(ControlPlaneUpdate(cache_age_ms=age_ms), now.monotonic_ms)
        cache._was_expired = cache._view.cache_state(now.monotonic_ms) is CacheState.EXPIRED
        return cache


def _highest(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
    return (max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2]))


def _verified(proof: ProofTuple, now: ClockReading) -> VerifiedProof:
    return VerifiedProof(proof.proven(), max(0, now.unix_ms - proof.updated_at))
