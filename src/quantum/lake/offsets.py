"""How far a query has read: of each partition the last index that it has.

As JSON `{"dev/0": 17, "dev/1": 4}`, keys in order, so that equal offsets are equal bytes. A
partition that is not named was not read: one that appears later is read from its first entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from quantum.archive.types import PrgId
from quantum.lake.refusals import BadOption


class Offsets(Mapping[PrgId, int]):
    """An immutable map from partitions to the last index read; 0 where nothing was."""

    __slots__ = ("_through",)

    def __init__(self, through: Mapping[PrgId, int] | None = None) -> None:
        self._through = dict(sorted((through or {}).items()))
        if any(index < 0 for index in self._through.values()):
            raise BadOption("an offset is an index, and none is below 0")

    def __getitem__(self, prg: PrgId) -> int:
        return self._through.get(prg, 0)

    def __iter__(self) -> Iterator[PrgId]:
        return iter(self._through)

    def __len__(self) -> int:
        return len(self._through)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Offsets) and self._through == other._through

    def __hash__(self) -> int:
        return hash(tuple(self._through.items()))

    def __repr__(self) -> str:
        return f"Offsets({self.to_json()})"

    def moved(self, through: Mapping[PrgId, int]) -> Offsets:
        """Return these offsets with some partitions further on."""
        return Offsets({**self._through, **through})

    def to_document(self) -> dict[str, int]:
        """Return what Spark keeps in its checkpoint."""
        return {str(prg): index for prg, index in self._through.items()}

    def to_json(self) -> str:
        return json.dumps(self.to_document(), separators=(",", ":"))

    @classmethod
    def from_document(cls, document: Any) -> Offsets:
        """Raises BadOption for anything that `to_document` does not make."""
        if not isinstance(document, dict):
            raise BadOption("offsets are an object of partitions and indexes")
        through: dict[PrgId, int] = {}
        for name, index in document.items():
            if type(index) is not int or index < 0:
                raise BadOption("an offset is an index", partition=name, offset=repr(index)[:40])
            through[parse_prg(name)] = index
        return cls(through)

    @classmethod
    def from_json(cls, text: str) -> Offsets:
        """Raises BadOption for other text."""
        try:
            return cls.from_document(json.loads(text))
        except ValueError:
            raise BadOption("offsets are JSON", text=text[:80]) from None


def parse_prg(name: str) -> PrgId:
    """Read `tenant/number`. Raises BadOption."""
    try:
        return PrgId.parse(name)
    except ValueError as error:
        raise BadOption(str(error)) from None
