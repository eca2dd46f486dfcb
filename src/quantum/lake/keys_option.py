"""From the name of a key provider to the provider. Keys themselves are never in an option."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from clustor.log.keys import KeyRing
from quantum.archive.types import PrgId
from quantum.lake.archive import DirectoryKeys, EnvironmentKeys, KeyProvider
from quantum.lake.options import keys_named
from quantum.lake.refusals import BadOption


def key_provider(name: str, where: str) -> KeyProvider:
    """Return the provider of a name, as `keys_named` takes it. Raises BadOption.

    `module:package.module.attribute` is imported where the keys are needed, so it can ask a vault
    or the workload's own identity there.
    """
    kind, _, rest = keys_named(name).partition(":")
    if kind == "directory":
        return DirectoryKeys(str(Path(rest).expanduser()) if rest else _directory_of(where))
    if kind == "env":
        return EnvironmentKeys(rest)
    module, _, attribute = rest.rpartition(".")
    try:
        provider = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadOption("cannot find the key provider", keys=name) from error
    if isinstance(provider, type) or (callable(provider) and not hasattr(provider, "keyring")):
        provider = provider()
    if not hasattr(provider, "keyring"):
        raise BadOption("this is no key provider: it has no keyring()", keys=name)
    return provider  # type: ignore[no-any-return]


def _directory_of(where: str) -> str:
    """Return where the keys of a source are unless somebody says: with a broker's data, or, of a
    cluster or an archive, where `quantum up` keeps them."""
    is_elsewhere = where.startswith("cluster:") or "://" in where
    return str(Path("var").absolute()) if is_elsewhere else where


@dataclass(frozen=True, slots=True)
class NamedKeys:
    """A provider that is looked up where keys are needed: only its name travels."""

    name: str
    where: str

    def keyring(self, prg: PrgId) -> KeyRing:
        return key_provider(self.name, self.where).keyring(prg)

    def __str__(self) -> str:
        return str(key_provider(self.name, self.where))
