"""`quantum up` with one slip planted in the machine of a key-value store: it happens once.

Whoever opens the group again applies the same entry, and does not fall over it.
"""

from __future__ import annotations

from collections.abc import Sequence

from clustor.kv import KvMachine
from quantum.cli import main as quantum

WORD = b"planted once"


def plant() -> None:
    apply_batch = KvMachine.apply_batch
    slipped: list[int] = []

    def slipping(machine: KvMachine, index: int, commands: Sequence[bytes]) -> list[bytes]:
        if WORD in b"".join(commands) and not slipped:
            slipped.append(index)
            raise ZeroDivisionError("a slip, with the secret that it fell over")
        return apply_batch(machine, index, commands)

    KvMachine.apply_batch = slipping  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    plant()
    quantum()
