"""The stream reader as Spark calls it, without Spark: how far a trigger goes, and what travels."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from clustor.runtime.keys.store import KEK_FILE, KEYS_DIRECTORY
from quantum.lake.options import parse_options
from quantum.lake.schema import NAMES
from quantum.lake.source import QuantumPartition, QuantumStreamReader
from tests.quantum.lake.log_directory import LogDirectory
from tests.quantum.lake.messages import batch

ENTRIES = 8


@pytest.fixture(scope="module")
def var(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions, each of eight entries in four segments."""
    root = tmp_path_factory.mktemp("logs") / "var"
    with LogDirectory(root, prgs=2, segment_bytes=1 << 20) as logs:
        for _ in range(ENTRIES):
            for prg in (0, 1):
                logs.append(prg, [batch([bytes(400_000)])])
    return root


def reader(var: Path, **options: str) -> QuantumStreamReader:
    return QuantumStreamReader(parse_options({"path": str(var), **options}), NAMES)


def triggers(found: QuantumStreamReader) -> list[dict[str, int]]:
    """Go on from trigger to trigger until nothing is left."""
    offsets = [found.initialOffset()]
    while (following := found.latestOffset(offsets[-1], found.getDefaultReadLimit())) != offsets[
        -1
    ]:
        offsets.append(following)
    return offsets[1:]


@pytest.mark.parametrize(
    ("limit", "least"),
    [
        ({"maxRecordsPerTrigger": "2"}, ENTRIES),
        ({"maxBytesPerTrigger": "900000"}, ENTRIES // 2),
        ({"maxFilesPerTrigger": "2"}, 3),
        ({"maxFilesPerTrigger": "100", "maxRecordsPerTrigger": "2"}, ENTRIES),
        ({}, 1),
    ],
)
def test_a_trigger_takes_in_what_it_may(var: Path, limit: dict[str, str], least: int) -> None:
    found = triggers(reader(var, **limit))
    assert len(found) >= least
    assert found[-1] == {"dev/0": ENTRIES, "dev/1": ENTRIES}
    records = int(limit.get("maxRecordsPerTrigger", 2 * ENTRIES))
    sizes = [sum(each.values()) for each in ({}, *found)]
    assert max(after - before for before, after in pairwise(sizes)) <= records


def test_a_run_that_takes_what_is_there_ends_there(tmp_path: Path) -> None:
    with LogDirectory(tmp_path / "var", prgs=1) as logs:
        logs.append(0, [batch([b"one"])])
    found = reader(tmp_path / "var")
    found.prepareForTriggerAvailableNow()
    with LogDirectory(tmp_path / "var", prgs=1) as logs:
        logs.append(0, [batch([b"two"])])
    assert found.latestOffset({}, ReadAllAvailable()) == {"dev/0": 1}
    assert found.reportLatestOffset() == {"dev/0": 2}


def test_what_travels_holds_no_key(var: Path) -> None:
    found = reader(var, keys=f"directory:{var}")
    parts = found.partitions(found.initialOffset(), found.latestOffset({}, ReadAllAvailable()))
    list(found.read(parts[0]))  # where keys are used, they are not kept either
    secret = bytes.fromhex((var / KEYS_DIRECTORY / KEK_FILE).read_text().strip())
    sent = pickle.dumps((found, parts, StructType()))
    assert all(isinstance(each, QuantumPartition) for each in parts)
    assert str(var).encode() in sent
    assert secret not in sent and secret.hex().encode() not in sent
    source = pickle.loads(sent)[1][0].source
    rings = [each for each in vars(source).values() if type(each).__name__ == "KeyRing"]
    assert rings == []
