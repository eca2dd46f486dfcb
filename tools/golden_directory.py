"""Make a small data directory with an older build, to be opened by every later one.

python -m tools.golden_directory COMMIT    writes tests/interop/golden/COMMIT.tar.xz

The build is taken from the repository's history and runs as `quantum up`; what it is told is in
`fill`, what must survive is in `tests/interop/test_golden_directory.py`, which opens the result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.interop.broker_process import BrokerProcess
from tests.interop.test_half_open import Port
from tests.quantum.serving.client import V5, V311, connect

ROOT: Final = Path(__file__).parent.parent
GOLDEN: Final = ROOT / "tests" / "interop" / "golden"
FOR_EVER: Final = 0xFFFFFFFF
QUEUED: Final = 6
CAPTURED: Final = 20
STREAM: Final = "telemetry"
SECONDS_MAX: Final = 60.0


def fill(broker: BrokerProcess) -> None:
    """Leave one of everything that must outlive an upgrade."""
    quantum("streams", "create", STREAM, "--capture", "sensors/#", "--admin", str(broker.admin))
    door = Port(broker.mqtt)
    away = connect(door, V5, client_id="away", clean=False, session_expiry_interval=FOR_EVER)
    away.subscribe(b"queue/+", 2)
    away.cut()
    old = connect(door, V311, client_id="old", clean=False)
    old.subscribe(b"queue/+", 1)
    old.cut()
    write(broker, 0)


def write(broker: BrokerProcess, half: int) -> None:
    """Publish the first or the second half of everything."""
    writer = connect(Port(broker.mqtt), V5, client_id="writer")
    for number in range(half * QUEUED // 2, (half + 1) * QUEUED // 2):
        writer.publish(b"queue/%d" % (number % 2), b"%d" % number, 1 + number % 2)
    for number in range(half * CAPTURED // 2, (half + 1) * CAPTURED // 2):
        writer.publish(b"sensors/%d" % (number % 3), b"%d" % number, 1 + number % 2)
    writer.publish(b"retained/kept/%d" % half, b"kept", 1, retain=True)
    writer.publish(b"retained/removed", b"removed", 1, retain=True)
    writer.publish(b"retained/removed", b"", 1, retain=True)
    writer.leave()


def await_snapshot(data: Path) -> None:
    """Wait until the partition has written a snapshot of the first half."""
    deadline = time.monotonic() + SECONDS_MAX
    while not any(data.glob("node-1/state/1000/**/manifest.json")):
        assert time.monotonic() < deadline, "no snapshot was written"
        time.sleep(0.1)


def quantum(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "quantum.cli", *arguments], check=True, timeout=120)


def unpack(commit: str, into: Path) -> None:
    """Put an older build's sources down."""
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit, "src"], check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(into)], input=packed, check=True)


def main(commit: str) -> None:
    """Make the directory with this build, and pack it."""
    with tempfile.TemporaryDirectory() as place:
        build, data = Path(place, "build"), Path(place, "var")
        build.mkdir()
        unpack(commit, build)
        os.environ["QUANTUM_SESSION_EXPIRY_SECONDS_DEFAULT"] = str(FOR_EVER - 1)
        os.environ["PYTHONPATH"] = str(build / "src")  # of the processes that are started
        with BrokerProcess(data, partitions=1) as broker:
            fill(broker)
            assert broker.interrupt() == 0
            described = (data / "cluster.json").read_text()
            often = json.loads(described) | {"snapshot_full_ms": 1_000, "snapshot_log_bytes": 1}
            (data / "cluster.json").write_text(json.dumps(often))
            broker.start()
            await_snapshot(data)
            write(broker, 1)
            assert broker.interrupt() == 0
            (data / "cluster.json").write_text(described)
            pack(data, GOLDEN / f"{commit}.tar.xz")
            broker.start()  # what was packed can be opened; its context ends it


def pack(data: Path, into: Path) -> None:
    """Pack all but the certificates, which end some day: a start without any makes new ones."""

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if "pki" in Path(member.name).parts else member

    GOLDEN.mkdir(exist_ok=True)
    with tarfile.open(into, "w:xz") as packed:
        packed.add(data, "var", filter=kept)


if __name__ == "__main__":
    main(sys.argv[1])
