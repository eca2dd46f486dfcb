"""Who is here without a first answer, by where they come from, and who must go for others.

One source gets a share of the places and no more. When all places are taken, the source that has
the most gives one up, its oldest: who comes alone is not pushed out by a crowd. Every step costs
the same however many there are. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Guest = TypeVar("Guest", bound=Hashable)

_IPV6_SITE_BITS: Final = 64
"""One site has that many addresses to choose from (RFC 6177), so it is one source."""


def source_of(host: str) -> str:
    """Return what counts as one source: an IPv4 address, or an IPv6 site."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        if mapped is None:
            return str(ipaddress.ip_network((address, _IPV6_SITE_BITS), strict=False))
        address = mapped
    return str(address)


class HalfOpen(Generic[Guest]):
    """The guests without a first answer."""

    __slots__ = ("_by_source", "_most", "_places", "_ranks", "_share", "_sources")

    def __init__(self, places: int, share: int) -> None:
        """Give `places` to all, and `share` of them to one source at most."""
        assert 0 < share <= places
        self._places = places
        self._share = share
        self._sources: dict[Guest, str] = {}
        self._by_source: dict[str, dict[Guest, None]] = {}
        """Of each source, the oldest first."""
        self._ranks: dict[int, dict[str, None]] = {}
        """Which sources have so many; no rank is empty."""
        self._most = 0
        """How many the source has that has the most."""

    def __len__(self) -> int:
        return len(self._sources)

    def add(self, guest: Guest, source: str) -> Guest | None:
        """Note a new guest; return who must go for it, and is forgotten."""
        assert guest not in self._sources
        mine = self._by_source.setdefault(source, {})
        mine[guest] = None
        self._sources[guest] = source
        self._move(source, len(mine) - 1, len(mine))
        if len(mine) <= self._share and len(self._sources) <= self._places:
            return None
        crowd = mine if len(mine) > self._share else self._heaviest()
        oldest = next(iter(crowd))
        self.discard(oldest)
        return oldest

    def discard(self, guest: Guest) -> None:
        """Forget a guest that was answered or is gone; one that is not here is no mistake."""
        source = self._sources.pop(guest, None)
        if source is None:
            return
        mine = self._by_source[source]
        del mine[guest]
        if not mine:
            del self._by_source[source]
        self._move(source, len(mine) + 1, len(mine))

    def _heaviest(self) -> dict[Guest, None]:
        return self._by_source[next(iter(self._ranks[self._most]))]

    def _move(self, source: str, before: int, after: int) -> None:
        if before:
            rank = self._ranks[before]
            del rank[source]
            if not rank:
                del self._ranks[before]
        if after:
            self._ranks.setdefault(after, {})[source] = None
        if after > self._most or (before == self._most and before not in self._ranks):
            self._most = after
