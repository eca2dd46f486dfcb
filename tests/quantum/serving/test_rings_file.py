"""The file of the rings, looked at many times a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantum.tenants.broker_file import BROKER_FILE, RingsFile


def test_what_is_wrong_with_it_is_said_once_until_something_else_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rings = RingsFile(tmp_path)
    for _ in range(3):
        assert rings.read_if_changed() is None
    assert len(caplog.records) == 1
    (tmp_path / BROKER_FILE).write_bytes(b"{")
    for _ in range(3):
        assert rings.read_if_changed() is None
    assert len(caplog.records) == 2
    (tmp_path / BROKER_FILE).write_bytes(b'{"tenants": []}\n')
    assert rings.read_if_changed() is not None
    (tmp_path / BROKER_FILE).unlink()
    assert rings.read_if_changed() is None
    assert len(caplog.records) == 3, "it was well in between"
