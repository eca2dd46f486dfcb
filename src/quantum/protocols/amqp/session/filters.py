"""The filters of a source: which of them are in force, as the attach says them back (§3.5.8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quantum.protocols.amqp.engine import Described
from quantum.protocols.amqp.selectors import SelectorError, parse_selector

_SELECTOR: Final = ("apache.org:selector-filter:string", 0x0000468C00000004)
_NO_LOCAL: Final = ("apache.org:no-local-filter:list", 0x0000468C00000003)


@dataclass(frozen=True, slots=True)
class ReceiverFilters:
    """What a receiver asked for and has; `told` is that in its own words."""

    selector: str = ""
    is_no_local: bool = False
    told: dict[object, object] | None = None


def read_filters(asked: dict[object, object] | None) -> ReceiverFilters:
    """Understand filters; those that are not known are not in force, and not said back.

    Raises SelectorError for a selector that is none, and for two.
    """
    selector, is_no_local = "", False
    told: dict[object, object] = {}
    for name, each in (asked or {}).items():
        if not isinstance(each, Described):
            continue
        if each.descriptor in _NO_LOCAL:
            is_no_local = True
        elif each.descriptor in _SELECTOR:
            if selector or not isinstance(each.value, str):
                raise SelectorError("one selector, which is a string", 0)
            selector = each.value.strip()
            if selector:
                parse_selector(selector)
        else:
            continue
        told[name] = each
    return ReceiverFilters(selector, is_no_local, told or None)
