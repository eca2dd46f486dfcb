"""Stores for tests: in memory, and one that dies at a chosen step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quantum.archive.objects import StoredObject
from quantum.lake.table import TableStore


class Crash(BaseException):
    """The process ends here. No handler of the code under test may catch it."""


class MemoryStore:
    """A table in memory, with the second names of a directory."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.modified_ms: dict[str, int] = {}
        self.now_ms = 0

    def create(self, name: str, data: bytes) -> bool:
        if name in self.files:
            return False
        self.files[name] = data
        self.modified_ms[name] = self.now_ms
        return True

    def read(self, name: str) -> bytes:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def names(self, directory: str) -> Iterator[StoredObject]:
        prefix = f"{directory}/" if directory else ""
        for name in sorted(self.files):
            if name.startswith(prefix):
                yield StoredObject(name, len(self.files[name]), self.modified_ms.get(name, 0))

    def delete(self, name: str) -> None:
        self.files.pop(name, None)

    def data_path(self, place: str, name: str) -> str:
        return f"_data/{name}"

    def show(self, path: str, place: str) -> None:
        shown = f"{place}/{path.rpartition('/')[2]}"
        self.files.setdefault(shown, self.files[path])
        self.modified_ms.setdefault(shown, self.now_ms)

    def hide(self, path: str, place: str) -> None:
        self.files.pop(f"{place}/{path.rpartition('/')[2]}", None)

    def uri(self, name: str) -> str:
        return f"memory:/{name}"

    def plain(self) -> set[str]:
        """Name what a reader of plain Parquet finds."""
        return {
            name.rpartition("/")[2]
            for name in self.files
            if not any(part.startswith("_") for part in name.split("/"))
        }


class DyingStore:
    """Passes calls on, and dies before or after the n-th change."""

    def __init__(self, below: TableStore, *, at_step: int, after: bool) -> None:
        self._below = below
        self._left = at_step
        self._after = after

    def _step(self, change: object, *arguments: object) -> object:
        assert callable(change)
        dies = self._left == 0
        self._left -= 1
        if dies and not self._after:
            raise Crash
        result = change(*arguments)
        if dies:
            raise Crash
        return result

    @property
    def survived(self) -> bool:
        return self._left >= 0

    def create(self, name: str, data: bytes) -> bool:
        return bool(self._step(self._below.create, name, data))

    def delete(self, name: str) -> None:
        self._step(self._below.delete, name)

    def show(self, path: str, place: str) -> None:
        self._step(self._below.show, path, place)

    def hide(self, path: str, place: str) -> None:
        self._step(self._below.hide, path, place)

    def read(self, name: str) -> bytes:
        return self._below.read(name)

    def names(self, directory: str) -> Iterable[StoredObject]:
        return self._below.names(directory)

    def data_path(self, place: str, name: str) -> str:
        return self._below.data_path(place, name)

    def uri(self, name: str) -> str:
        return self._below.uri(name)
