"""Where settings come from: flags before environment before file before defaults."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from quantum.config.errors import BadValue, FileUnreadable, UnknownSetting
from quantum.config.kinds import Value
from quantum.config.settings import Settings, kind_of, names_of

PREFIX: Final = "QUANTUM_"
CONFIG_VARIABLE: Final = "QUANTUM_CONFIG"
_OF_OTHERS: Final = frozenset({CONFIG_VARIABLE, "QUANTUM_PURE"})
"""Variables that other parts of the project read."""

DEFAULT: Final = "default"
TableT = TypeVar("TableT", bound=Settings)


@dataclass(frozen=True, slots=True)
class EffectiveSettings(Generic[TableT]):
    """The effective settings, and where each of them came from."""

    settings: TableT
    sources: Mapping[str, str]

    def shown(self, name: str) -> str:
        """Return a setting's value as a person would write it."""
        return kind_of(name, type(self.settings)).show(getattr(self.settings, name))


def load(
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    file: Path | None = None,
) -> EffectiveSettings[Settings]:
    """Read the configuration. A flag that is None was not given. Raises ConfigurationError.

    The file is `file`, else the one that QUANTUM_CONFIG names, else none.
    """
    taken = _Taken(Settings)
    if file is None and environment.get(CONFIG_VARIABLE):
        file = Path(environment[CONFIG_VARIABLE])
    if file is not None:
        taken.take(_read_file(file), lambda key: f"{file}: {key}")
    taken.take(_of_environment(environment), lambda key: PREFIX + key.upper())
    given = {key: raw for key, raw in flags.items() if raw is not None}
    taken.take(given, lambda key: "--" + key.replace("_", "-"))
    return taken.effective()


def load_file(table: type[TableT], file: Path) -> EffectiveSettings[TableT]:
    """Read a configuration that is one file, and nothing else. Raises ConfigurationError."""
    taken = _Taken(table)
    taken.take(_read_file(file), lambda key: f"{file}: {key}")
    return taken.effective()


def keys_in(file: Path) -> frozenset[str]:
    """Return which settings a file says something of. Raises FileUnreadable."""
    return frozenset(_read_file(file))


class _Taken(Generic[TableT]):
    """What was read so far: a later source's word replaces an earlier one's."""

    def __init__(self, table: type[TableT]) -> None:
        self._table = table
        self._names = names_of(table)
        self._values: dict[str, Value] = {}
        self._sources = dict.fromkeys(self._names, DEFAULT)

    def take(self, found: Mapping[str, object], name_of: Callable[[str], str]) -> None:
        for key, raw in found.items():
            if key not in self._names:
                raise UnknownSetting(_unknown(name_of(key), key, self._names))
            kind = kind_of(key, self._table)
            try:
                self._values[key] = kind.read(raw)
            except ValueError:
                raise BadValue(f"{name_of(key)} is {raw!r}, and must be {kind.allowed}") from None
            self._sources[key] = name_of(key)

    def effective(self) -> EffectiveSettings[TableT]:
        return EffectiveSettings(self._table(**self._values), self._sources)  # type: ignore[arg-type]  # each kind reads its own type


def _read_file(file: Path) -> Mapping[str, object]:
    try:
        with file.open("rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise FileUnreadable(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileUnreadable(f"{file} is not TOML: {error}") from error


def _of_environment(environment: Mapping[str, str]) -> Mapping[str, object]:
    return {
        name.removeprefix(PREFIX).lower(): raw
        for name, raw in environment.items()
        if name.startswith(PREFIX) and name not in _OF_OTHERS
    }


def _unknown(shown: str, key: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(names), n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(names)}"
    return f"{shown} is no setting; {hint}"
