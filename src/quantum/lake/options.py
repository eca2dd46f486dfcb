"""What a user may say to `format("quantum")`: options in, values or one sentence out. Pure.

path             a stopped broker's directory, or an archive's URL
cluster          HOST:PORT of any node's admin address; with `path`, what the cluster has
                 compacted comes from that archive
keys             where keys come from: `directory` (beside the data), a path or `directory:PATH`,
                 `env:NAME`, or `module:NAME` of a provider in Python. Never a key: options are
                 shown in plans
broker           a directory with the broker's `broker.json`, where an archive does not say under
                 which numbers its log was applied: only then `applied` is exact
rows             `applied` (messages that the broker took, each once; the default) or `logged`
                 (every record, without the work of replaying)
onGap            `fail` (the default) or `row`, where entries are gone for good
startingOffsets  `first` (index 1, the default), `earliest` (what is left), `latest`, or JSON
endingOffsets    `latest` (the default) or JSON; for batches
stream           only what this stream captured, with `stream_partition` and `stream_offset`; they
                 follow from the broker's state, so `rows` is `applied`
tenant, prgs, topicPrefix, indexMin, indexMax, since, until
                 what is wanted at all: the rest is not even read. Both indexes count; `since` and
                 `until` are times with a zone (2026-11-15T20:00:00Z), the first of them counts
pushdown         `off` (the default) or `on`: let a WHERE narrow what is read, too. Spark up to 4.3
                 then reads that little for every other query over the same DataFrame: load it
                 anew for each query, and never use it twice in one
maxRecordsPerTrigger, maxBytesPerTrigger, maxFilesPerTrigger
partitionBytes   how much one task reads, about
columns          names, in order, where no schema is given
schemaVersion    the version whose columns a job was written for
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from quantum.lake.filters import NO_FILTERS, Filters
from quantum.lake.offsets import Offsets
from quantum.lake.opening import CLUSTER
from quantum.lake.planner import BatchLimits, Cutting, OnGap
from quantum.lake.refusals import BadOption
from quantum.lake.schema import SCHEMA_VERSION, check_version, chosen

FIRST: Final = "first"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
APPLIED: Final = "applied"
LOGGED_ROWS: Final = "logged"
_KNOWN: Final = frozenset(
    name.lower()
    for name in (
        *("path", "cluster", "keys", "broker", "rows", "onGap", "startingOffsets", "endingOffsets"),
        *("tenant", "prgs", "topicPrefix", "stream", "pushdown"),
        *("indexMin", "indexMax", "since", "until"),
        *("maxRecordsPerTrigger", "maxBytesPerTrigger", "maxFilesPerTrigger"),
        *("partitionBytes", "warmupBytes", "columns", "schemaVersion"),
    )
)
_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_KEYS: Final = re.compile(r"directory|(directory|env|module):.+")
_PATH: Final = re.compile(r"(/|\./|\.\./|~)[^=\"{]*|[^:=\"{]*/[^:=\"{]*")
_SECRET: Final = re.compile(r"(0x)?[0-9a-fA-F]{32,}|[A-Za-z0-9+/]{42,}={0,2}|.*[{\"].*")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one query, checked."""

    where: str
    keys: str = "directory"
    broker: str | None = None
    rows: str = APPLIED
    on_gap: OnGap = OnGap.FAIL
    starting: str | Offsets = FIRST
    ending: Offsets | None = None
    filters: Filters = NO_FILTERS
    limits: BatchLimits = BatchLimits()
    cutting: Cutting = Cutting()
    columns: tuple[str, ...] | None = None
    version: int = SCHEMA_VERSION
    pushes_down: bool = False
    """Whether a WHERE narrows the plan, which Spark shares between queries over a DataFrame."""

    @property
    def is_live(self) -> bool:
        """Whether a running cluster is read."""
        return self.where.startswith(CLUSTER)


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Check what a user said. Raises BadOption and UnknownSchemaVersion."""
    options = {name.lower(): value for name, value in given.items()}
    strange = sorted(set(options) - _KNOWN)
    if strange:
        raise BadOption("there is no such option", options=",".join(strange))
    version = _number(options, "schemaversion") or SCHEMA_VERSION
    check_version(version)
    rows = _one_of(options, "rows", (APPLIED, LOGGED_ROWS))
    if "stream" in options and rows != APPLIED:
        raise BadOption("the offsets of a stream follow from the state: option rows is applied")
    where, keys = _where(options), keys_named(options.get("keys", "directory"))
    if keys == "directory" and ("://" in where or where.startswith(CLUSTER)):
        raise BadOption("no keys lie beside this log: say where they are with option keys")
    return SourceOptions(
        where=where,
        keys=keys,
        broker=options.get("broker"),
        rows=rows,
        on_gap=OnGap(_one_of(options, "ongap", tuple(each.value for each in OnGap))),
        starting=_starting(options.get("startingoffsets", FIRST)),
        ending=_ending(options.get("endingoffsets", LATEST)),
        filters=_filters(options),
        limits=BatchLimits(
            _number(options, "maxrecordspertrigger"),
            _number(options, "maxbytespertrigger"),
            _number(options, "maxfilespertrigger"),
        ),
        cutting=_cutting(options, exact=rows == APPLIED),
        columns=_columns(options, version),
        version=version,
        pushes_down=_one_of(options, "pushdown", ("off", "on")) == "on",
    )


def _where(options: Mapping[str, str]) -> str:
    path, cluster = options.get("path"), options.get("cluster")
    if cluster:
        return f"{CLUSTER}{cluster}+{path}" if path else f"{CLUSTER}{cluster}"
    if not path:
        raise BadOption("say where the log is: option path, or cluster")
    return path


def keys_named(name: str) -> str:
    """Return the name of a provider; a plain path is that of a directory. Raises BadOption.

    What may be a key is refused without being repeated. A bare word is no path: it may be the name
    of something else that was mistyped.
    """
    if name.startswith(("/", "./", "../", "~/")) and _PATH.fullmatch(name):
        return f"directory:{name}"
    is_secret = _SECRET.fullmatch(name.removeprefix("env:")) is not None
    if _KEYS.fullmatch(name) and not (is_secret and name.startswith("env:")):
        return name
    if is_secret:
        raise BadOption("option keys names a provider; a key in an option would be shown in plans")
    if _PATH.fullmatch(name):
        return f"directory:{name}"
    raise BadOption(
        "option keys is a path (./PATH), directory, directory:PATH, env:NAME or module:NAME",
        keys=name,
    )


def _one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = options.get(name, allowed[0]).lower()
    if value not in allowed:
        raise BadOption(f"option {name} is one of {', '.join(allowed)}", value=value)
    return value


def _starting(value: str) -> str | Offsets:
    if value.lower() in (FIRST, EARLIEST, LATEST):
        return value.lower()
    return Offsets.from_json(value)


def _ending(value: str) -> Offsets | None:
    return None if value.lower() == LATEST else Offsets.from_json(value)


def _number(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not value.isascii() or not value.isdecimal() or int(value) < 1:
        raise BadOption(f"option {name} is a number from 1 on", value=value[:40])
    return int(value)


def _filters(options: Mapping[str, str]) -> Filters:
    filters = NO_FILTERS
    if tenant := options.get("tenant"):
        filters = filters.with_tenants(frozenset(tenant.split(",")))
    if prgs := options.get("prgs"):
        if not all(number.strip().isdecimal() for number in prgs.split(",")):
            raise BadOption("option prgs is a list of numbers", value=prgs[:40])
        filters = filters.with_prgs(frozenset(map(int, prgs.split(","))))
    if prefix := options.get("topicprefix"):
        filters = filters.with_prefix(prefix.encode())
    if stream := options.get("stream"):
        filters = filters.with_stream(stream.encode())
    if first := _number(options, "indexmin"):
        filters = filters.with_indexes(first=first)
    if last := _number(options, "indexmax"):
        filters = filters.with_indexes(last=last)
    if since := options.get("since"):
        filters = filters.with_times(first_ms=_moment("since", since))
    if until := options.get("until"):
        filters = filters.with_times(last_ms=_moment("until", until) - 1)
    return filters


def _moment(name: str, text: str) -> int:
    """Return a time in milliseconds; one between two of them is the later."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None or at < _BEGIN:
        raise BadOption(f"option {name} is a time with a zone from 1970 on", value=text[:40])
    return -(-(at - _BEGIN) // _MILLISECOND)


def _cutting(options: Mapping[str, str], *, exact: bool) -> Cutting:
    plain = Cutting()
    return Cutting(
        _number(options, "partitionbytes") or plain.task_bytes,
        _number(options, "warmupbytes") or plain.warmup_bytes_max,
        exact,
    )


def _columns(options: Mapping[str, str], version: int) -> tuple[str, ...] | None:
    if "columns" not in options:
        return None
    names = tuple(name.strip() for name in options["columns"].split(","))
    return tuple(column.name for column in chosen(names, version))
