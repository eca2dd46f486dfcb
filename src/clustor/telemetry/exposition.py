"""The text that Prometheus scrapes, version 0.0.4: families of series, in the order given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from clustor.telemetry.meters import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Value: TypeAlias = int | float
Labels: TypeAlias = str
"""Labels as they stand between the braces; `labels` makes them."""

_MILLISECONDS: Final = "_ms"
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(slots=True)
class MetricFamily:
    """All series of one name. `name` has the dots of the specification: they become `_`."""

    name: str
    kind: MetricKind
    help: str
    series: list[tuple[Labels, Value]] = field(default_factory=list)
    histogram: Histogram | None = None


def counter(name: str, value: Value, text: str) -> MetricFamily:
    return MetricFamily(name, MetricKind.COUNTER, text, [("", value)])


def gauge(name: str, value: Value, text: str) -> MetricFamily:
    return MetricFamily(name, MetricKind.GAUGE, text, [("", value)])


def histogram(name: str, observed: Histogram, text: str) -> MetricFamily:
    return MetricFamily(name, MetricKind.HISTOGRAM, text, histogram=observed)


def by_label(
    kind: MetricKind, name: str, label: str, values: Mapping[str, Value], text: str
) -> MetricFamily:
    """Make one series for each value of one label; who calls has a closed list of them."""
    series = [(labels(**{label: each}), value) for each, value in sorted(values.items())]
    return MetricFamily(name, kind, text, series)


def labels(**values: str) -> Labels:
    """Write labels, escaped."""
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in values.items())


def series_name(name: str) -> str:
    """Write a name of the specification as Prometheus writes it."""
    return name.replace(".", "_").replace("-", "_")


def encode_families(families: Iterable[MetricFamily]) -> bytes:
    """Write families one behind the other; a family without series is left out."""
    lines: list[str] = []
    for family in families:
        lines += _lines(family)
        if family.name.endswith(_MILLISECONDS):
            lines += _lines(in_seconds(family))
    return ("\n".join(lines) + "\n").encode() if lines else b""


def in_seconds(family: MetricFamily) -> MetricFamily:
    """Give the twin of a family in milliseconds, under the unit that Prometheus wants.

    The names in milliseconds are the specification's (clustor §13.1), so both are there.
    """
    name = family.name.removesuffix(_MILLISECONDS) + "_seconds"
    text = family.help.replace("milliseconds", "seconds")
    series = [(each, value / 1000) for each, value in family.series]
    if family.histogram is None:
        return MetricFamily(name, family.kind, text, list(series))
    twin = Histogram(tuple(bound / 1000 for bound in family.histogram.bounds))
    twin.counts, twin.total = list(family.histogram.counts), family.histogram.total / 1000
    return MetricFamily(name, family.kind, text, histogram=twin)


def _lines(family: MetricFamily) -> list[str]:
    name = series_name(family.name)
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {family.kind}"]
    if family.histogram is not None:
        return lines + _histogram_lines(name, family.histogram)
    if not family.series:
        return []
    for each, value in family.series:
        lines.append(f"{name}{{{each}}} {value}" if each else f"{name} {value}")
    return lines


def _histogram_lines(name: str, observed: Histogram) -> list[str]:
    lines, seen = [], 0
    for bound, count in zip(observed.bounds, observed.counts, strict=False):
        seen += count
        lines.append(f'{name}_bucket{{le="{bound}"}} {seen}')
    seen += observed.counts[-1]
    lines.append(f'{name}_bucket{{le="+Inf"}} {seen}')
    return [*lines, f"{name}_sum {observed.total}", f"{name}_count {seen}"]
