"""Decide what a query reads next, and how the work is cut. Pure: no Spark, no files, no clock.

`admit` says how far a batch goes, `cut` turns the way between two offsets into tasks. Both are
functions of what the logs offer, so that a batch that is planned again is the same batch.

Every index between start and end is in exactly one task, or was left out because a filter wants
nothing of it; where entries are gone a task of its own stands for them. Tasks of one partition
ascend. Whatever the limits are, a batch that has something to read moves on.

A row is a message that the broker took, and only the broker's state before an entry tells which
publishes it took. So a task that must know begins at an *anchor*: an index after which the state is
known, because a snapshot has it or because the log begins there. A cut is made only where the way
from the last anchor is short (`warmup_bytes_max`), or on an anchor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from quantum.archive.types import Bounds, LogPiece, PrgId
from quantum.lake.errors import LogGone
from quantum.lake.filters import NO_FILTERS, Filters
from quantum.lake.offsets import Offsets
from quantum.lake.refusals import BadOption, OffsetAhead


class OnGap(Enum):
    """What happens where entries are gone for good."""

    FAIL = "fail"
    ROW = "row"


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much one batch may take in; None is no limit. Records are log entries, files pieces."""

    records: int | None = None
    bytes: int | None = None
    files: int | None = None

    def __post_init__(self) -> None:
        for value in (self.records, self.bytes, self.files):
            if value is not None and value < 1:
                raise BadOption("a limit is at least 1", limit=value)


@dataclass(frozen=True, slots=True)
class Cutting:
    """How large tasks become. `exact` asks for anchors."""

    task_bytes: int = 128 << 20
    warmup_bytes_max: int = 256 << 20
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Offer:
    """What a source has of one partition; after an anchor the broker's state is known."""

    bounds: Bounds
    anchors: tuple[int, ...] = ()

    def anchor_before(self, index: int) -> int | None:
        """Return the last anchor from which the log leads to `index` without a hole."""
        at = bisect_right(self.anchors, index - 1) - 1
        if at < 0:
            return None
        anchor = self.anchors[at]
        return anchor if anchor == index - 1 or not _gaps(self.bounds, anchor + 1, index) else None


@dataclass(frozen=True, slots=True)
class Task:
    """The entries from `first` through `last` for one worker; `is_gap` says that they are gone.

    `anchor` is where to begin to know the broker's state before `first`; None: nobody knows it.
    """

    prg: PrgId
    first: int
    last: int
    anchor: int | None = None
    is_gap: bool = False


HighWater = Mapping[PrgId, Offer]


def plan(  # noqa: PLR0917  # what it needs
    start: Offsets,
    high_water: HighWater,
    limits: BatchLimits,
    filters: Filters = NO_FILTERS,
    cutting: Cutting = Cutting(),  # noqa: B008  # a frozen value
    on_gap: OnGap = OnGap.FAIL,
) -> tuple[Offsets, tuple[Task, ...]]:
    """Say how far a batch from `start` goes, and the tasks that read it.

    Raises LogGone where entries are gone and `on_gap` is FAIL, OffsetAhead where a log is shorter
    than what was read of it.
    """
    end = admit(start, high_water, limits, filters)
    return end, cut(start, end, high_water, filters, cutting, on_gap)


def admit(
    start: Offsets, high_water: HighWater, limits: BatchLimits, filters: Filters = NO_FILTERS
) -> Offsets:
    """Return how far the next batch goes; `start` itself where there is nothing new.

    Each limit is shared out by how far the partitions are behind, so that no busy partition
    starves another. Partitions that no filter wants go to their ends: there is nothing to read.
    """
    waiting: dict[PrgId, Offer] = {}
    through: dict[PrgId, int] = {}
    for prg in sorted(high_water):
        offer = high_water[prg]
        _check_ahead(prg, start[prg], offer.bounds)
        if offer.bounds.last <= start[prg]:
            continue
        if filters.wants_partition(prg):
            waiting[prg] = offer
        through[prg] = offer.bounds.last
    if not through:
        return start
    for prg, last in _limited(start, waiting, limits).items():
        through[prg] = last
    return start.moved(through)


def _check_ahead(prg: PrgId, read: int, bounds: Bounds) -> None:
    if read > bounds.last and read > 0:
        raise OffsetAhead(
            "this log ends before what was read or planned of it",
            prg=prg,
            index=bounds.last,
            offset=read,
        )


def _limited(
    start: Offsets, waiting: Mapping[PrgId, Offer], limits: BatchLimits
) -> dict[PrgId, int]:
    """Return how far each partition may go; at least one of them moves. A gap costs nothing."""
    read = {prg: _behind_gap(offer.bounds, start[prg]) for prg, offer in waiting.items()}
    last = {prg: offer.bounds.last for prg, offer in waiting.items()}
    behind = {prg: last[prg] - read[prg] for prg in waiting}
    through = dict(last)
    if limits.records is not None:
        for prg, records in _shares(limits.records, behind).items():
            through[prg] = min(through[prg], read[prg] + records)
    if limits.bytes is not None:
        sizes = {
            prg: bytes_between(offer.bounds, read[prg] + 1, last[prg])
            for prg, offer in waiting.items()
        }
        for prg, size in _shares(limits.bytes, sizes).items():
            through[prg] = min(through[prg], _reach(waiting[prg].bounds, read[prg], size))
    if limits.files is not None:
        files = {prg: len(_pieces(offer.bounds, read[prg])) for prg, offer in waiting.items()}
        for prg, count in _shares(limits.files, files).items():
            through[prg] = min(through[prg], _after_files(waiting[prg].bounds, read[prg], count))
    if waiting and all(through[prg] <= start[prg] for prg in waiting):
        most = max(sorted(behind), key=lambda prg: behind[prg])
        through[most] = min(read[most] + 1, last[most])
    return through


def _behind_gap(bounds: Bounds, read: int) -> int:
    """Return the index before the next entry that is there."""
    following = next((piece for piece in bounds.pieces if piece.last > read), None)
    return bounds.last if following is None else max(read, following.first - 1)


def _shares(limit: int, weights: Mapping[PrgId, int]) -> dict[PrgId, int]:
    """Share a limit out by weight, the rest to the largest remainders."""
    total = sum(weights.values())
    if total <= limit:
        return dict(weights)
    shares = {prg: limit * weight // total for prg, weight in weights.items()}
    left = limit - sum(shares.values())
    order = sorted(weights, key=lambda prg: (-(limit * weights[prg] % total), prg))
    for prg in order[:left]:
        shares[prg] += 1
    return shares


def _pieces(bounds: Bounds, read: int) -> Sequence[LogPiece]:
    return [piece for piece in bounds.pieces if piece.last > read]


def _after_files(bounds: Bounds, read: int, count: int) -> int:
    pieces = _pieces(bounds, read)
    if count >= len(pieces):
        return bounds.last
    return pieces[count - 1].last if count else read


def _reach(bounds: Bounds, read: int, size: int) -> int:
    """Return the last index so that what lies behind `read` is about `size` bytes."""
    reached = read
    for piece in _pieces(bounds, read):
        first = max(piece.first, read + 1)
        whole = _bytes_of(piece, first, piece.last)
        if whole <= size:
            size -= whole
            reached = piece.last
            continue
        fitting = size * _length(piece) // max(1, piece.bytes)
        return first - 1 + fitting if fitting else reached
    return bounds.last


def _length(piece: LogPiece) -> int:
    return piece.last - piece.first + 1


def _bytes_of(piece: LogPiece, first: int, last: int) -> int:
    """Estimate the bytes of a part of a piece; a piece's entries count as equally long."""
    return -(-piece.bytes * (last - first + 1) // _length(piece))


def bytes_between(bounds: Bounds, first: int, last: int) -> int:
    """Estimate how many bytes the entries from `first` through `last` have."""
    return sum(
        _bytes_of(piece, max(first, piece.first), min(last, piece.last))
        for piece in bounds.pieces
        if piece.last >= first and piece.first <= last
    )


def cut(  # noqa: PLR0917
    start: Offsets,
    end: Offsets,
    high_water: HighWater,
    filters: Filters = NO_FILTERS,
    cutting: Cutting = Cutting(),  # noqa: B008  # a frozen value
    on_gap: OnGap = OnGap.FAIL,
) -> tuple[Task, ...]:
    """Return the tasks that read everything behind `start` through `end`.

    Raises LogGone where entries are gone and `on_gap` is FAIL, and OffsetAhead where the log ends
    before `end`: what is not there yet, or not here now, is no gap.
    """
    tasks: list[Task] = []
    for prg in end:
        first, last = start[prg] + 1, end[prg]
        if first > last or not filters.wants_partition(prg):
            continue
        offer = high_water.get(prg) or Offer(Bounds(prg, 1, 0))
        _check_ahead(prg, last, offer.bounds)
        first, last = max(first, filters.index_min), min(last, filters.index_max)
        tasks += _cut_partition(offer, first, last, filters, cutting, on_gap)
    return tuple(tasks)


def _cut_partition(  # noqa: PLR0917
    offer: Offer, first: int, last: int, filters: Filters, cutting: Cutting, on_gap: OnGap
) -> Iterator[Task]:
    bounds = offer.bounds
    at = first
    for gone_first, gone_last in [*_gaps(bounds, first, last), (last + 1, last)]:
        for begin, stop in _wanted(bounds, at, gone_first - 1, filters):
            yield from _cut_range(offer, begin, stop, cutting)
        if gone_first <= gone_last:
            if on_gap is OnGap.FAIL:
                raise gone(bounds, gone_first, gone_last)
            yield Task(bounds.prg, gone_first, gone_last, is_gap=True)
        at = gone_last + 1


def up_to(offer: Offer, target: int, read: int) -> Offer:
    """Behave as if nothing had come after `target`; what was read already stays read."""
    bounds = offer.bounds
    last = min(bounds.last, max(target, read))
    pieces = tuple(piece for piece in bounds.pieces if piece.first <= last)
    return Offer(Bounds(bounds.prg, bounds.first, last, pieces), offer.anchors)


def gone(bounds: Bounds, first: int, last: int) -> LogGone:
    """Say that entries are nowhere, and what can be done."""
    return LogGone(
        "entries are gone from the log and from the archive",
        prg=bounds.prg,
        first=first,
        last=last,
        readable_from=last + 1 if last < bounds.last else None,
        hint="onGap=row (--gap-rows) writes a row in their place and goes on",
    )


def _gaps(bounds: Bounds, first: int, last: int) -> list[tuple[int, int]]:
    """Return which of the indexes from `first` through `last` no piece holds."""
    gaps: list[tuple[int, int]] = []
    at = first
    for piece in bounds.pieces:
        if piece.last < at:
            continue
        if piece.first > last:
            break
        if piece.first > at:
            gaps.append((at, piece.first - 1))
        at = piece.last + 1
    if at <= last:
        gaps.append((at, last))
    return gaps


def _wanted(bounds: Bounds, first: int, last: int, filters: Filters) -> Iterator[tuple[int, int]]:
    """Leave out the pieces of which a filter wants nothing; join what touches."""
    begin: int | None = None
    stop = first - 1
    for piece in bounds.pieces:
        if piece.last < first or piece.first > last:
            continue
        if filters.wants_piece(piece):
            begin = max(first, piece.first) if begin is None else begin
            stop = min(last, piece.last)
        elif begin is not None:
            yield begin, stop
            begin = None
    if begin is not None:
        yield begin, stop


def _cut_range(offer: Offer, first: int, last: int, cutting: Cutting) -> Iterator[Task]:
    bounds, prg = offer.bounds, offer.bounds.prg
    at = first
    while at <= last:
        stop = min(last, max(at, _reach(bounds, at - 1, cutting.task_bytes)))
        if cutting.exact and stop < last:
            stop = _exact_stop(offer, stop, last, cutting)
        anchor = offer.anchor_before(at) if cutting.exact else None
        if cutting.exact and anchor is None:
            stop = _up_to_anchor(offer, at, stop)
        yield Task(prg, at, stop, anchor)
        at = stop + 1


def _up_to_anchor(offer: Offer, at: int, stop: int) -> int:
    """What is behind an anchor is known again: nobody's ignorance reaches beyond it."""
    following = [anchor for anchor in offer.anchors if at <= anchor < stop]
    return following[0] if following else stop


def _exact_stop(offer: Offer, stop: int, last: int, cutting: Cutting) -> int:
    """Cut where the next task begins cheaply, at the earliest at `stop`."""
    anchor = offer.anchor_before(stop + 1)
    if anchor is not None:
        warmup = bytes_between(offer.bounds, anchor + 1, stop)
        if warmup <= cutting.warmup_bytes_max:
            return stop
    following = [each for each in offer.anchors if stop < each < last]
    return following[0] if following else last
