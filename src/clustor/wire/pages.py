"""Pages of ids: sorted, at most 32, with a count of what is left out and a token to go on (§13.2).

The token names the last id of its page, not a position: ids that come and go between two
requests neither repeat one nor skip another.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, NewType

from .errors import WireUnknownField
from .fields import COUNTER32, TEXT, Optional, RepeatedField

IDS_MAX = 32
_TOKEN_VERSION = b"1:"

ContinuationToken = NewType("ContinuationToken", str)


@dataclass(slots=True)
class IdPageBody:
    """Ids in lexicographic order; `page_of` sets the token exactly when ids are left out."""

    ids: Annotated[list[str], RepeatedField(TEXT, items_max=IDS_MAX, ascending=True)] = field(
        default_factory=list
    )
    truncated_ids_count: Annotated[int, COUNTER32] = 0
    continuation_token: Annotated[ContinuationToken | None, Optional(TEXT)] = None


def page_of(ids: Iterable[str], *, after: ContinuationToken | None = None) -> IdPageBody:
    """Return the first page of `ids`, or the one that follows the token `after`.

    Duplicates are dropped. A token that no page gave out raises WireUnknownField.
    """
    last_seen = None if after is None else _last_id_of(after)
    waiting = sorted(one for one in set(ids) if last_seen is None or one > last_seen)
    shown, left_out = waiting[:IDS_MAX], len(waiting) - IDS_MAX
    if left_out <= 0:
        return IdPageBody(shown)
    return IdPageBody(shown, left_out, _token_after(shown[-1]))


def _token_after(last_id: str) -> ContinuationToken:
    return ContinuationToken(urlsafe_b64encode(_TOKEN_VERSION + last_id.encode()).decode())


def _last_id_of(token: ContinuationToken) -> str:
    try:
        raw = urlsafe_b64decode(token)
        version, last_id = raw[: len(_TOKEN_VERSION)], raw[len(_TOKEN_VERSION) :].decode()
    except ValueError:
        raise WireUnknownField("not a continuation token") from None
    if version != _TOKEN_VERSION or _token_after(last_id) != token:
        raise WireUnknownField("not a continuation token")
    return last_id
