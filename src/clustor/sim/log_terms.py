"""The terms of a log, as the judge keeps them beside the replica's own."""

from __future__ import annotations

from dataclasses import dataclass, field

from clustor.replica import Replica


@dataclass(slots=True)
class LogTerms:
    """The terms of a log: of index `base + 1` and following. Shared lists only ever grow."""

    base: int = 0
    terms: list[int] = field(default_factory=list)
    length: int = 0

    @property
    def last_index(self) -> int:
        return self.base + self.length

    def term_at(self, index: int) -> int | None:
        at = index - self.base - 1
        return self.terms[at] if 0 <= at < self.length else None

    def holds(self, term: int, index: int) -> bool:
        """What is below the base is in an authorised snapshot, and so it is held."""
        return index <= self.base or self.term_at(index) == term


def view_of(replica: Replica) -> LogTerms:
    """Read every term of a replica's log."""
    entries, last = replica.log.entries, replica.log.last_index
    terms = [int(entries.term_of(index)) for index in range(entries.base_index + 1, last + 1)]
    return LogTerms(int(entries.base_index), terms, len(terms))


def next_view(replica: Replica, planned: LogTerms) -> LogTerms:
    """The log as planned now; the judge's own copy, which shares what did not change."""
    log = replica.log
    base, last = log.entries.base_index, log.last_index
    term = log.entries.term_of
    if (base, last) == (planned.base, planned.last_index) and (
        last == base or term(last) == planned.term_at(last)
    ):
        return planned
    old_last = planned.last_index
    if (
        base == planned.base
        and last > old_last
        and (old_last == base or term(old_last) == planned.term_at(old_last))
    ):
        del planned.terms[planned.length :]
        planned.terms.extend(term(index) for index in range(old_last + 1, last + 1))
        return LogTerms(base, planned.terms, last - base)
    return view_of(replica)
