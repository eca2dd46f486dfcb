"""The `slipstream` command: watch, get, put, scan, export, import, lease."""

from slipstream.cli.app import app, main

__all__ = ["app", "main"]
