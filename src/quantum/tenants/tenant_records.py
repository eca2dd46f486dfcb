"""What an administrator's client may change of its tenant: users, settings and access rules.

They stand in the control plane, where every change is decided, logged and audited. A protocol asks
here in its own words; who may is decided there, by the roles that the caller was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from clustor.control import TenantAclRule
from clustor.control.configuration import Value


class ChangeRefusal(StrEnum):
    """Why a change was not made."""

    NOT_ALLOWED = "the caller's role does not let it change this"
    INVALID = "no broker could carry this out"
    UNAVAILABLE = "the control plane does not answer"


@dataclass(frozen=True, slots=True)
class ChangeRefused:
    """Nothing was changed; of `UNAVAILABLE` it may yet be."""

    why: ChangeRefusal
    words: str
    """One sentence for people."""


@dataclass(frozen=True, slots=True)
class ChangeAsker:
    """Who wants a change."""

    principal: str | None
    """As access rules name it; None: nobody."""
    is_local: bool
    """Whether it came in plaintext, which only programs of this machine can."""


Document: TypeAlias = Mapping[str, Value]
AccessRules: TypeAlias = tuple[TenantAclRule, ...]
ChangeDone: TypeAlias = Callable[[ChangeRefused | None], None]


class TenantRecords(Protocol):
    """A tenant's records. Reading is of this node's copy; a change is answered when it is durable.

    What changes a record is called with what stands, again where another change came between. It
    returns what shall stand, the same where nothing is to be done.
    """

    def document(self, tenant: str) -> Document:
        """Return the tenant's own settings, its users among them."""
        ...

    def rules(self, tenant: str) -> AccessRules | None:
        """Return its access rules; None: the control plane has none."""
        ...

    def change_document(
        self,
        asker: ChangeAsker,
        tenant: str,
        change: Callable[[Document], Document],
        done: ChangeDone,
    ) -> None: ...

    def change_rules(
        self,
        asker: ChangeAsker,
        tenant: str,
        change: Callable[[AccessRules], AccessRules],
        done: ChangeDone,
    ) -> None:
        """Change a list that there is: the first rule of a new one would shut everybody out."""
