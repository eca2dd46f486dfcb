"""Standard error as `rich` draws on it, for commands with progress; others need not import it."""

from __future__ import annotations

from rich.console import Console

errors = Console(stderr=True, soft_wrap=True)
