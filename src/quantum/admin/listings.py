"""What the tables of routes share: pages, scopes, and the row of a listing."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from clustor import control as c
from clustor.control.types import Count, Name
from quantum.admin.answers import list_page
from quantum.admin.reading import listing
from quantum.admin.routes import AdminRoute, Parameter, page

PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1_000

Limit = Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)]
Cursor = Annotated[str, msgspec.Meta(pattern=r"^[\x21-\x7e]+$(?!\n)", max_length=512)]
NumberCursor = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,20}$(?!\n)")]

LIMIT: Final = Parameter("limit", Limit, "how many at most", default=PAGE_DEFAULT)
AFTER: Final = Parameter(
    "after", Cursor | None, "go on behind this one: the page before names it", default=None
)
PAGED: Final = (LIMIT, AFTER)
BY_NUMBER: Final = (LIMIT, Parameter("after", NumberCursor | None, AFTER.about, default=None))
SCOPE: Final = (
    Parameter("scope", c.ScopeKind, "whose configuration it is", default=c.ScopeKind.CLUSTER),
    Parameter("name", Name, "the node, partition, tenant or definition", default="all"),
)
TENANT: Final[dict[str, Any]] = {"tenant_id": Name}
GROUP: Final[dict[str, Any]] = {"partition_id": Count}


def list_route(
    path: str, kind: Any, says: str, summary: str, *columns: str, **more: Any
) -> AdminRoute:
    """List all objects of a kind, by pages."""
    return page(
        path, listing(kind), list_page(kind), says, summary, query=PAGED, columns=columns, **more
    )
