"""Turn a scope into the subjects that one consumer filters by. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.keys import checked_prefix
from slipstream.types import WatchScope


@dataclass(frozen=True, slots=True)
class FilterPlan:
    """Server-side subjects, none of which covers another (the server refuses overlap).

    `narrow` holds the prefixes to check again on arrival where one of them ends inside a token:
    the server filters by whole tokens only.
    """

    subjects: tuple[str, ...]
    narrow: tuple[str, ...] | None

    def accepts(self, key: str) -> bool:
        """Say whether a delivered key is really in scope."""
        return self.narrow is None or key.startswith(self.narrow)


def plan_filters(scope: WatchScope, subject_prefix: str) -> FilterPlan:
    """Plan the filter of a scope under `$KV.<bucket>.`."""
    wanted = [checked_prefix(prefix) for prefix in scope.prefixes]
    trunks = sorted({prefix[: prefix.rfind(".") + 1] for prefix in wanted})
    kept: list[str] = []
    for trunk in trunks:  # Sorted, so a covering trunk comes before what it covers.
        if not any(trunk.startswith(other) for other in kept):
            kept.append(trunk)
    exact = all(prefix == "" or prefix.endswith(".") for prefix in wanted)
    covered = exact and all(any(prefix.startswith(trunk) for trunk in kept) for prefix in wanted)
    return FilterPlan(
        tuple(f"{subject_prefix}{trunk}>" for trunk in kept),
        None if covered else tuple(wanted),
    )
