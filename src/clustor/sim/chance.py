"""Chance in a simulation: generators that a name alone decides."""

from __future__ import annotations

from random import Random


def generator(*name: object) -> Random:
    """Return the generator of this name; its draws depend on nothing else."""
    return Random(" ".join(map(str, name)))  # noqa: S311  # chosen for repetition, not for secrecy
