"""A tenant's records in memory, changed at once: a fake at the port of the control plane."""

from __future__ import annotations

from collections.abc import Callable

from quantum.tenants.tenant_records import (
    AccessRules,
    ChangeAsker,
    ChangeDone,
    ChangeRefused,
    Document,
)


class MemoryRecords:
    """One tenant's. `refusal` is what every change is told; `between` comes before its last try."""

    def __init__(self) -> None:
        self.settings: Document = {}
        self.list: AccessRules | None = None
        self.refusal: ChangeRefused | None = None
        self.between: Callable[[], None] | None = None
        self.askers: list[ChangeAsker] = []

    def document(self, tenant: str) -> Document:
        assert tenant == "dev"
        return self.settings

    def rules(self, tenant: str) -> AccessRules | None:
        assert tenant == "dev"
        return self.list

    def change_document(
        self,
        asker: ChangeAsker,
        _tenant: str,
        change: Callable[[Document], Document],
        done: ChangeDone,
    ) -> None:
        if self._begin(asker, lambda: change(self.settings), done):
            self.settings = change(self.settings)
            done(None)

    def change_rules(
        self,
        asker: ChangeAsker,
        _tenant: str,
        change: Callable[[AccessRules], AccessRules],
        done: ChangeDone,
    ) -> None:
        assert self.list is not None
        if self._begin(asker, lambda: change(self.list or ()), done):
            self.list = change(self.list)
            done(None)

    def _begin(self, asker: ChangeAsker, first_try: Callable[[], object], done: ChangeDone) -> bool:
        self.askers.append(asker)
        if self.refusal is not None:
            done(self.refusal)
            return False
        if self.between is not None:
            first_try()
            self.between()
        return True
