"""What ends a simulated run."""

from __future__ import annotations


class PromiseBroken(Exception):
    """A promise of Raft or of the acknowledgement did not hold."""
