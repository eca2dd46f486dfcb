"""Pages of streams: what is captured by offset, how much is kept of it, and reading it."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from clustor.control import AccessRole
from clustor.control.types import Count
from quantum.admin import stream_pages as s
from quantum.admin.listings import AFTER, LIMIT, TENANT
from quantum.admin.routes import OPERATORS, TENANT_READERS, Parameter, page
from quantum.node import rows as w

_OWNERS: Final = OPERATORS | {AccessRole.TENANT_ADMIN}
_STREAM: Final[dict[str, Any]] = {**TENANT, "stream": s.StreamName}
_BEHIND: Final = Parameter(
    "after", Annotated[str, msgspec.Meta(max_length=249)] | None, AFTER.about, default=None
)
_TENANTS: Final[dict[str, Any]] = {"kinds": TENANT, "own_tenant": True, "is_local": True}
_READ: Final = (
    Parameter(
        "partition",
        Annotated[int, msgspec.Meta(ge=0, le=1023)],
        "which partition of the stream",
        default=0,
    ),
    Parameter("offset", Count | None, "the first offset to read; none: the start", default=None),
    Parameter(
        "time_ms",
        Count | None,
        "the first message of that time or later (ms since 1970)",
        default=None,
    ),
    Parameter(
        "bytes_max",
        Annotated[int, msgspec.Meta(ge=1, le=s.BYTES_MAX)],
        "about how many bytes at most; one batch always passes",
        default=256 << 10,
    ),
    Parameter(
        "wait_ms",
        Annotated[int, msgspec.Meta(ge=0, le=s.WAIT_MS_MAX)],
        "how long to wait where there is nothing yet",
        default=0,
    ),
)

STREAMS: Final = (
    page(
        "/v1/tenants/{tenant_id}/streams",
        s.streams,
        w.StreamPage,
        "streams list",
        "List the streams of a tenant.",
        query=(LIMIT, _BEHIND),
        columns=("name", "filters", "retention_ms", "retention_bytes", "created_ms"),
        example="acme",
        **{**_TENANTS, "roles": TENANT_READERS},
    ),
    page(
        "/v1/tenants/{tenant_id}/streams",
        s.create,
        w.StreamInfo,
        "streams create",
        "Keep what is published below topic filters, by offset; answered when all of it is.",
        method="POST",
        body=s.CreateBody,
        example="acme --name telemetry --filters '[\"sensors/#\"]' --retention-ms 604800000",
        **{**_TENANTS, "roles": _OWNERS},
    ),
    page(
        "/v1/tenants/{tenant_id}/streams/{stream}",
        s.stream,
        w.StreamInfo,
        "streams show",
        "Show a stream and how far its partitions reach on this node.",
        example="acme telemetry",
        **{**_TENANTS, "kinds": _STREAM, "roles": TENANT_READERS},
    ),
    page(
        "/v1/tenants/{tenant_id}/streams/{stream}/delete",
        s.delete,
        w.StreamGone,
        "streams delete",
        "End a stream, and delete all that it holds.",
        method="POST",
        body=s.DeleteBody,
        example="acme telemetry",
        **{**_TENANTS, "kinds": _STREAM, "roles": _OWNERS},
    ),
    page(
        "/v1/tenants/{tenant_id}/streams/{stream}/records",
        s.records,
        w.StreamRecords,
        "streams records",
        "Read messages of a partition of a stream, from an offset or a time on.",
        query=_READ,
        codes=(410, 429),
        columns=("offset", "timestamp_ms", "address", "payload"),
        example="acme telemetry --offset 0",
        **{**_TENANTS, "kinds": _STREAM, "roles": _OWNERS},
    ),
)
