"""The features of this build that wait for a gate of the control plane (clustor §14.2).

A gate counts here only if it names the predicate that this build was made for: an operator reads
it here, puts it into the signed feature manifest, and opens the gate by its digest. What is asked
at a gate, and by whom:

| gate | while it is shut |
| --- | --- |
| SnapshotDeltaEnable | snapshots are whole ones (`ReplicaSnapshots.deltas_allowed`) |
| GroupFsync | a leader appends no transition to it, and writes in Strict (`GroupFsyncClause`) |
| PidAutoTuner | the gains of the profile hold (`Admission.allow_tuning`) |
| ObserverAdmission | a placement with a new observer waits (`Steering`) |

Leases and BLAKE3 leaves are not built: no node reports them, so that their gates cannot be opened.
A node without a control plane has no gates, and nothing to wait for but its profile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from clustor.control import Feature, feature_is_on
from clustor.runtime.group import HostedGroup

if TYPE_CHECKING:
    from clustor.runtime.node_parts import NodeControl

PREDICATES: Final[Mapping[Feature, str]] = {
    Feature.INCREMENTAL_SNAPSHOTS: (
        "every voter imports a full snapshot with its deltas; the copy of the control plane is "
        "Fresh or Cached; strict fallback is not asserted"
    ),
    Feature.GROUP_FSYNC: (
        "every voter writes through io_uring and delays a batch within its limits alone; the copy "
        "of the control plane is Fresh; strict fallback is not asserted; no quarantine holds"
    ),
    Feature.PID_AUTO_TUNER: (
        "the profile is Throughput or WAN; the leader writes through io_uring with fixed buffers; "
        "the copy of the control plane is Fresh"
    ),
    Feature.OBSERVER_ADMISSION: (
        "every voter replicates to observers without counting them; the copy of the control plane "
        "is Fresh or Cached; strict fallback is not asserted"
    ),
}
DIGESTS: Final = {name: sha256(words.encode()).digest() for name, words in PREDICATES.items()}


def open_gates(control: NodeControl) -> frozenset[Feature]:
    """Return the features whose gates are open here, as this node's copy has them."""
    return frozenset(
        feature
        for feature, digest in DIGESTS.items()
        if feature_is_on(
            control.cache,
            feature,
            digest,
            cache=control.cache_state(),
            strict_fallback=False,  # each group has a latch of its own, and asks it
        )
    )


def tell_groups(control: NodeControl, groups: Iterable[HostedGroup]) -> None:
    """Let groups know what they may do."""
    opened = open_gates(control)
    for group in groups:
        replica = group.replica
        replica.snapshots.deltas_allowed = Feature.INCREMENTAL_SNAPSHOTS in opened
        replica.group.allow_group_fsync(allowed=Feature.GROUP_FSYNC in opened)
        group.admission.allow_tuning(allowed=Feature.PID_AUTO_TUNER in opened)
