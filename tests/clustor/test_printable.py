"""Words of others in our logs and in our audit: one line stays one line."""

from __future__ import annotations

import io
import logging

import pytest

from clustor.printable import printable
from clustor.runtime.errors import PeerRefused
from clustor.runtime.telemetry.journal import TextFormatter
from quantum.edge.errors import TenantUnknown

FORGED = "x\n2026-01-01 00:00:00 all is well"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("plain text, 100 %: ü", "plain text, 100 %: ü"),
        (FORGED, "x\\n2026-01-01 00:00:00 all is well"),
        ("\r\x1b[2J\x00\x7f\x9b", "\\r\\x1b[2J\\x00\\x7f\\x9b"),
        ("\u2028\u202etxt.exe", "\\u2028\\u202etxt.exe"),
        ("\ud800", "\\ud800"),
        ("a\\nb", "a\\nb"),
        (7, "7"),
    ],
)
def test_one_line_of_printable_characters(said: object, shown: str) -> None:
    assert printable(said) == shown
    assert printable(printable(said)) == shown


def test_errors_tell_of_facts_in_one_line() -> None:
    for error in (TenantUnknown("no", name=FORGED), PeerRefused("no", name=FORGED)):
        assert len(str(error).splitlines()) == 1


def test_a_line_of_the_log_is_one_line_whoever_speaks_in_it() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter("%(message)s"))
    record = logging.LogRecord("quantum", logging.INFO, "", 0, "refused: %s", (FORGED,), None)
    handler.emit(record)
    assert len(stream.getvalue().splitlines()) == 1
