"""A small or failing disk under `quantum up`: one line where it cannot start, the truth where it
cannot go on.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from quantum.cli.exits import Exit
from quantum.protocols.mqtt.codec import Publish, TopicName
from tests.interop.broker_process import HOST, BrokerProcess
from tests.interop.ordinary_user import IMPOSSIBLE
from tests.interop.test_half_open import Port
from tests.interop.test_starts_everywhere import command, home
from tests.quantum.serving.client import connect

__all__ = ["home"]

FRESH_BYTES_MAX: Final = 32_000_000
DEADLINE_SECONDS: Final = 180.0


def quantum(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command until its broker answers; a slow one may take longer than the command waits."""
    code = "from quantum.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if ran.returncode != Exit.UNREACHABLE or time.monotonic() > deadline:
            return ran


def test_a_disk_that_is_too_small_is_one_line_before_anything_is_made(home: Path) -> None:
    ended = subprocess.run(
        command({"tmpfs": True, "size": "40m"}, home, mqtt=0),
        capture_output=True,
        text=True,
        timeout=300,
    )
    if ended.returncode == IMPOSSIBLE:
        pytest.skip(ended.stderr)
    assert ended.returncode == Exit.NO_ROOM, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("quantum: the disk is too full to start"), line
    assert "free=42 MB" in line and "needed=" in line, line
    assert not (home / "var").exists()


def blocks_of(path: Path) -> int:
    try:
        return path.lstat().st_blocks
    except FileNotFoundError:  # the broker is running, and replaces files
        return 0


def bytes_in(directory: Path) -> int:
    """Sum up what is there; directories that go meanwhile are passed over."""
    names = (Path(at, each) for at, below, files in os.walk(directory) for each in below + files)
    return 512 * sum(map(blocks_of, names))


def test_a_fresh_directory_is_small_and_status_tells_of_groups_that_stopped(
    tmp_path: Path,
) -> None:
    data = tmp_path / "var"
    with BrokerProcess(data) as broker:
        assert bytes_in(data) <= FRESH_BYTES_MAX
        status = ("status", "--admin", f"{HOST}:{broker.admin.port}")
        healthy = quantum(*status)
        assert healthy.returncode == 0, healthy.stdout
        assert "stopped" not in healthy.stdout
        client = connect(Port(broker.mqtt))  # no later: its own writes may stop the broker
        # From here on no file of the broker can grow, as on a disk that takes no more.
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (1, 1))
        client.send(Publish(TopicName(b"any"), b"for the log", 1, packet_id=client.draw_id()))
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not broker.page("/v1/broker/status")["stopped"]:
            assert time.monotonic() < deadline, broker.last_words()
            time.sleep(0.02)
        client.cut()  # no earlier: a reset takes what was sent and not read with it
        ill = quantum(*status)
        assert ill.returncode == Exit.FAILED, ill.stdout
        assert "has stopped: the disk failed" in ill.stdout
        assert "EFBIG" in ill.stdout.replace("\n", "")
        page = json.loads(quantum(*status, "--json").stdout)
        stopped = {each["group"] for each in page["stopped"]}
        rows = {row["group"]: row for row in page["partitions"]}
        for group in stopped & rows.keys():
            assert (rows[group]["leader"], rows[group]["state"]) == (None, "stopped")
        cluster = quantum("cluster", *status)
        assert cluster.returncode == Exit.FAILED, cluster.stdout
