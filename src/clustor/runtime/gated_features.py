"""The features of this build that wait for a gate of the control plane (clustor §14.2).

A gate counts here only if it names the predicate that this build was made for: an operator reads
it here, puts it into the signed feature manifest, and opens the gate by its digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from clustor.control import Feature, feature_is_on
from clustor.runtime.hosted_group import HostedGroup

if TYPE_CHECKING:
    from clustor.runtime.control_service import ControlService

PREDICATES: Final[Mapping[Feature, str]] = {
    Feature.INCREMENTAL_SNAPSHOTS: (
        "every voter imports a full snapshot with its deltas; the copy of the control plane is "
        "Fresh or Cached; strict fallback is not asserted"
    ),
}
DIGESTS: Final = {name: sha256(words.encode()).digest() for name, words in PREDICATES.items()}


def is_open(control: ControlService, feature: Feature) -> bool:
    """Say whether a feature's gate is open here, as this node's copy has it."""
    return feature_is_on(
        control.cache,
        feature,
        DIGESTS[feature],
        cache=control.cache_state(),
        strict_fallback=False,  # each group has a latch of its own, and asks it
    )


def tell_groups(control: ControlService, groups: Iterable[HostedGroup]) -> None:
    """Let every group know whether it may emit deltas."""
    allowed = is_open(control, Feature.INCREMENTAL_SNAPSHOTS)
    for group in groups:
        group.replica.allow_deltas(allowed=allowed)
