"""Typed views and dead letters: what fits becomes a row beside the raw one, the rest is kept."""

from __future__ import annotations

import json
from collections import Counter
from io import BytesIO
from pathlib import Path

import fastavro
import pytest

from quantum.lake.jobs.backfill import Backfilled, backfill, digests_of
from quantum.lake.jobs.compact import compact
from quantum.lake.jobs.errors import BadView
from quantum.lake.jobs.ingest import IngestSettings, plan_batch, proposal_of, write_task
from quantum.lake.jobs.verify import verify
from quantum.lake.jobs.views import Misfit, View, checked, decoder_of, read_views
from quantum.lake.table import FileKind, Table, encode_commit
from tests.quantum.lake.jobs.logs import MemorySource
from tests.quantum.lake.jobs.tables import filled, payloads, rows
from tests.quantum.lake.table.stores import MemoryStore

READINGS = View(
    "readings", "sensors/+/reading", "json", {"temperature": "double", "unit": "string?"}
)
AVRO = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "temperature", "type": "double"},
        {"name": "unit", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}


def test_payloads_that_fit_and_those_that_do_not() -> None:
    log = MemorySource(prg_count=1)
    good = b'{"temperature": 21.5, "unit": "C", "more": 1}'
    log.publish(0, good, b'{"temperature": 3}', topic="sensors/a/reading")
    log.publish(0, b"not json", b'{"temperature": "warm"}', b"[]", topic="sensors/b/reading")
    log.publish(0, b"not json either", topic="elsewhere")
    store = MemoryStore()
    report = filled(log, store, entries=2, views=(READINGS,))
    assert len(payloads(store)) == 6, "raw rows stay, whatever their payloads are"
    typed = rows(store, FileKind.TYPED, "readings")
    assert [(row["raft_index"], row["temperature"], row["unit"]) for row in typed] == [
        (1, 21.5, "C"),
        (1, 3.0, None),
    ]
    dead = rows(store, FileKind.DEAD)
    assert report.dead == 3
    assert [(row["raft_index"], row["sub_index"], row["view"]) for row in dead] == [
        (2, 0, "readings"),
        (2, 1, "readings"),
        (2, 2, "readings"),
    ]
    assert dead[0]["payload"] == b"not json"
    assert "temperature is no double" in dead[1]["reason"]
    assert not any("_views" in name or "_dead" in name for name in store.plain())


def typed(store: MemoryStore) -> list[tuple[int, float]]:
    return [
        (row["raft_index"], row["temperature"]) for row in rows(store, FileKind.TYPED, "readings")
    ]


def letters(store: MemoryStore) -> list[tuple[str, bytes]]:
    return [(row["view"], row["payload"]) for row in rows(store, FileKind.DEAD)]


def some_readings(log: MemorySource, *numbers: int) -> None:
    for number in numbers:
        log.publish(0, b'{"temperature": %d}' % number, b"?", topic="sensors/a/reading")


OTHER = View("other", "sensors/#", "json", {"colour": "string"})


@pytest.mark.parametrize("compacted", [False, True], ids=["as written", "compacted"])
def test_a_view_that_comes_later_covers_what_is_there(compacted: bool) -> None:
    """And goes on with what comes; a second run adds nothing."""
    log, store = MemorySource(prg_count=2), MemoryStore()
    some_readings(log, 1, 2, 3)
    filled(log, store, entries=1)
    if compacted:
        compact(store, files_min=2)
    assert typed(store) == []
    some_readings(log, 4)
    filled(log, store, entries=1, views=(READINGS,))
    assert typed(store) == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    assert letters(store) == [("readings", b"?")] * 4
    version = Table.open(store).state.version
    filled(log, store, views=(READINGS,))
    assert Table.open(store).state.version == version
    assert backfill(store, (READINGS,)) == Backfilled()


@pytest.mark.parametrize("compacted", [False, True], ids=["as written", "compacted"])
def test_a_view_that_was_left_out_of_a_run_is_made_whole(compacted: bool) -> None:
    log, store = MemorySource(prg_count=1), MemoryStore()
    for number, views in enumerate([(READINGS,), (), (OTHER,), (READINGS, OTHER)], 1):
        some_readings(log, number)
        filled(log, store, views=views)
    if compacted:
        compact(store, files_min=2)
    some_readings(log, 5)
    filled(log, store, views=())
    some_readings(log, 6)
    filled(log, store, entries=1, views=(OTHER, READINGS))
    assert typed(store) == [(n, float(n)) for n in range(1, 7)]
    assert Counter(letters(store)) == {
        ("readings", b"?"): 6,
        ("other", b"?"): 6,
        **{("other", b'{"temperature": %d}' % n): 1 for n in range(1, 7)},
    }
    assert len(payloads(store)) == 12


def test_a_view_that_is_described_anew_is_written_anew() -> None:
    log, store = MemorySource(prg_count=1), MemoryStore()
    some_readings(log, 1, 2)
    filled(log, store, views=(READINGS, OTHER))
    strict = View(
        "readings", "sensors/+/reading", "json", {"temperature": "double", "unit": "string"}
    )
    filled(log, store, views=(strict, OTHER))
    assert typed(store) == [], "no unit"
    assert sum(view == "readings" for view, _ in letters(store)) == 4
    assert sum(view == "other" for view, _ in letters(store)) == 4
    filled(log, store, views=(READINGS,))
    assert typed(store) == [(1, 1.0), (2, 2.0)]


def test_a_table_of_an_older_release_says_nothing_of_its_views() -> None:
    """Its views are written anew, not twice."""
    log, store = MemorySource(prg_count=1), MemoryStore()
    some_readings(log, 1, 2)
    table = Table.create(store, schema_version=1, at_ms=0)
    settings = IngestSettings(views=(READINGS,))
    batch = plan_batch(log, table.state, settings)
    written = [write_task(log, store, settings, {}, 1, (task, True)) for task in batch.tasks]
    commit = table.commit(proposal_of(table.state, batch.ranges, written), at_ms=0)
    assert b'"views"' not in encode_commit(commit)
    assert typed(store) == [(1, 1.0), (2, 2.0)]
    filled(log, store, views=(READINGS,))
    assert typed(store) == [(1, 1.0), (2, 2.0)]
    assert len(letters(store)) == 2
    assert verify(log, store).is_equal


def one_batch(log: MemorySource, store: MemoryStore, *views: View) -> None:
    """Commit as a driver does that looked for what is missing before another one came."""
    table, settings = Table.open(store), IngestSettings(views=views)
    batch = plan_batch(log, table.state, settings)
    written = [
        write_task(log, store, settings, batch.states, batch.version, (task, True))
        for task in batch.tasks
    ]
    table.commit(proposal_of(table.state, batch.ranges, written, digests_of(views)), at_ms=0)


@pytest.mark.parametrize("compacted", [False, True], ids=["as written", "compacted"])
def test_a_hole_that_another_driver_made_is_filled(compacted: bool) -> None:
    """Also where a file of the view has rows on both sides of it."""
    log, store = MemorySource(prg_count=1), MemoryStore()
    filled(log, store)
    for number, views in enumerate([(READINGS,), (), (READINGS,)], 1):
        some_readings(log, number)
        one_batch(log, store, *views)
    assert typed(store) == [(1, 1.0), (3, 3.0)]
    if compacted:
        compact(store, files_min=2)
        (both,) = Table.open(store).state.of_kind(FileKind.TYPED, "readings")
        assert (both.first, both.last) == (1, 3)
    assert backfill(store, (READINGS,)).rows >= 2
    assert typed(store) == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert letters(store) == [("readings", b"?")] * 3
    assert backfill(store, (READINGS,)) == Backfilled()


def test_avro_payloads() -> None:
    view = View("avro", "#", "avro", schema=json.dumps(AVRO))
    buffer = BytesIO()
    fastavro.schemaless_writer(
        buffer, fastavro.parse_schema(AVRO), {"temperature": 1.5, "unit": None, "tags": ["a"]}
    )
    decode = decoder_of(checked((view,))[0])
    assert decode(buffer.getvalue()) == {"temperature": 1.5, "unit": None, "tags": '["a"]'}
    for bad in (b"", buffer.getvalue()[:-1], buffer.getvalue() + b"x", b"\xff" * 9):
        with pytest.raises(Misfit):
            decode(bad)


@pytest.mark.parametrize(
    ("kind", "value", "fits"),
    [
        ("long", 7, True),
        ("long", 7.5, False),
        ("long", True, False),
        ("long", 1 << 63, False),
        ("double", 7, True),
        ("double", "7", False),
        ("boolean", False, True),
        ("boolean", 0, False),
        ("string", "", True),
        ("string", None, False),
        ("string?", None, True),
        ("json", {"b": 1, "a": [2]}, True),
    ],
)
def test_values_fit_or_do_not(kind: str, value: object, fits: bool) -> None:
    decode = decoder_of(View("v", "#", "json", {"x": kind}))
    payload = json.dumps({"x": value}).encode()
    if fits:
        decode(payload)
    else:
        with pytest.raises(Misfit):
            decode(payload)


def test_descriptions_are_read_and_checked(tmp_path: Path) -> None:
    (tmp_path / "reading.avsc").write_text(json.dumps(AVRO))
    described = tmp_path / "views.toml"
    described.write_text(
        '[[view]]\nname = "a"\ntopics = "x/#"\nformat = "json"\n[view.fields]\nt = "long"\n'
        '[[view]]\nname = "b"\ntopics = "y/#"\nformat = "avro"\nschema = "reading.avsc"\n'
    )
    json_view, avro_view = read_views(described)
    assert json_view.columns() == {"t": "long"}
    assert avro_view.columns() == {"temperature": "double", "unit": "string?", "tags": "json"}
    for bad in (
        View("Bad Name", "#", "json", {"x": "long"}),
        View("v", "#", "xml", {"x": "long"}),
        View("v", "#", "json", {"x": "int128"}),
        View("v", "#", "json", {"topic": "long"}),
        View("v", "#", "json"),
        View("v", "#", "avro", schema="[]"),
    ):
        with pytest.raises(BadView):
            checked((bad,))
    with pytest.raises(BadView):
        checked((json_view, json_view))
    described.write_text("nonsense")
    with pytest.raises(BadView):
        read_views(described)
