"""Where settings come from: flags before environment before file before defaults."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quantum.config.errors import BadValue, FileUnreadable, UnknownSetting
from quantum.config.kinds import Value
from quantum.config.settings import NAMES, Settings, kind_of

PREFIX: Final = "QUANTUM_"
CONFIG_VARIABLE: Final = "QUANTUM_CONFIG"
_OF_OTHERS: Final = frozenset({CONFIG_VARIABLE, "QUANTUM_PURE"})
"""Variables that other parts of the project read."""

DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The effective settings, and where each of them came from."""

    settings: Settings
    sources: Mapping[str, str]

    def shown(self, name: str) -> str:
        """Return a setting's value as a person would write it."""
        return kind_of(name).show(getattr(self.settings, name))


def load(
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    file: Path | None = None,
) -> Configuration:
    """Read the configuration. A flag that is None was not given. Raises ConfigurationError.

    The file is `file`, else the one that QUANTUM_CONFIG names, else none.
    """
    values: dict[str, Value] = {}
    sources = dict.fromkeys(NAMES, DEFAULT)
    if file is None and environment.get(CONFIG_VARIABLE):
        file = Path(environment[CONFIG_VARIABLE])
    if file is not None:
        _take(values, sources, _read_file(file), lambda key: f"{file}: {key}")
    _take(values, sources, _of_environment(environment), lambda key: PREFIX + key.upper())
    given = {key: raw for key, raw in flags.items() if raw is not None}
    _take(values, sources, given, lambda key: "--" + key.replace("_", "-"))
    return Configuration(Settings(**values), sources)  # type: ignore[arg-type]


def _take(
    values: dict[str, Value],
    sources: dict[str, str],
    found: Mapping[str, object],
    name_of: Callable[[str], str],
) -> None:
    for key, raw in found.items():
        if key not in NAMES:
            raise UnknownSetting(_unknown(name_of(key), key, NAMES))
        kind = kind_of(key)
        try:
            values[key] = kind.read(raw)
        except ValueError:
            raise BadValue(f"{name_of(key)} is {raw!r}, and must be {kind.allowed}") from None
        sources[key] = name_of(key)


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
