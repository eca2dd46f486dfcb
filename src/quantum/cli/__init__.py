"""The `quantum` command: one sentence and an exit code for people, JSON for machines."""

from quantum.cli.app import main

__all__ = ["main"]
