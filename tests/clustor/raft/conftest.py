"""`--rewrite` writes what the scenarios say now over what they said before."""

from __future__ import annotations

import contextlib

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # another room's scenarios may have added it
        parser.addoption(
            "--rewrite", action="store_true", help="write the scenarios' outcomes anew"
        )
