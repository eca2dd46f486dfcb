"""The page of the configuration says what the settings say: every default, every bound."""

from __future__ import annotations

import re

from quantum.config import NAMES
from quantum.config.live import LIVE_KEYS
from tools.configuration_page import PAGE, page


def test_the_page_is_what_the_settings_are() -> None:
    """After a change: `python -m tools.configuration_page`."""
    assert PAGE.read_text() == page()


def test_every_setting_has_a_row_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([\w.]+)` \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE))
    assert set(NAMES) | set(LIVE_KEYS) <= set(rows)
    assert all(default.strip() for default in rows.values())
