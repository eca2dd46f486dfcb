"""The journal: one line of JSON for each event, and levels that can be changed at any time."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from clustor.runtime.telemetry.journal import (
    FORMAT_VARIABLE,
    JournalLevels,
    JsonFormatter,
    UnknownLevel,
    log_format,
)
from clustor.telemetry.log_lines import FIELDS, MESSAGE_CHARACTERS_MAX

NAME = "clustor.test_telemetry"


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter(4))
    logger = logging.getLogger(NAME)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def test_an_event_is_one_line_with_its_facts(lines: io.StringIO) -> None:
    journal = logging.getLogger(NAME)
    journal.info("group %d: %s", 7, "a\nline", extra={"facts": {"b": b"\xff", "a": 1}})
    text = lines.getvalue()
    assert text.count("\n") == 1
    found = json.loads(text)
    assert set(FIELDS) <= set(found)
    assert found["event"] == "group %d: %s", "equal for all events of its kind"
    assert found["message"] == "group 7: a\nline"
    assert (found["level"], found["logger"], found["node_id"]) == ("INFO", NAME, 4)
    assert found["facts"] == {"a": 1, "b": "\ufffd"}
    assert list(found) == sorted(found), "canonical: members ascend"


def test_an_error_is_in_its_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger(NAME).exception("it failed")
    found = json.loads(lines.getvalue())
    assert "ValueError: boom" in found["error"]


def test_a_line_is_cut_and_says_so(lines: io.StringIO) -> None:
    logging.getLogger(NAME).info("%s", "x" * 100_000)
    found = json.loads(lines.getvalue())
    assert len(found["message"]) < MESSAGE_CHARACTERS_MAX + 40
    assert found["message"].endswith("more")


def test_a_level_is_changed_at_run_time(lines: io.StringIO) -> None:
    journal, levels = logging.getLogger(NAME), JournalLevels()
    journal.debug("not yet")
    levels.set("debug", NAME)
    journal.debug("now")
    assert levels.get()[NAME] == "DEBUG"
    levels.set("ERROR", NAME)
    journal.warning("not any more")
    assert [json.loads(line)["message"] for line in lines.getvalue().splitlines()] == ["now"]


@pytest.mark.parametrize(("level", "logger"), [("LOUD", ""), ("DEBUG", "asyncio"), ("", NAME)])
def test_what_is_unknown_is_refused(level: str, logger: str) -> None:
    before = JournalLevels().get()
    with pytest.raises(UnknownLevel):
        JournalLevels().set(level, logger)
    assert JournalLevels().get() == before


def test_the_flag_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORMAT_VARIABLE, raising=False)
    assert log_format() == "text"
    monkeypatch.setenv(FORMAT_VARIABLE, "json")
    assert log_format() == "json"
    assert log_format("text") == "text"
    monkeypatch.setenv(FORMAT_VARIABLE, "xml")
    assert log_format() == "text"
