"""Pages about one message: whether it would come to a client, where it was, who had it on disk."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from clustor.control import AccessRole
from clustor.control.types import Count
from clustor.security.receipts import DurabilityReceipt
from quantum.admin import explain_pages as e
from quantum.admin.listings import TENANT
from quantum.admin.routes import OPERATORS, TENANT_READERS, Parameter, page
from quantum.node.delivery_rows import DeliveryView, MessageTrail

_OWNERS: Final = OPERATORS | {AccessRole.TENANT_ADMIN}
"""Who may learn of single messages; Observers see how much there is, and not what."""
_Text: Final = Annotated[str, msgspec.Meta(max_length=4096)]
_Name: Final = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
_Message: Final = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
_Partition: Final = Annotated[int, msgspec.Meta(ge=0, le=1023)]
_TENANTS: Final[dict[str, Any]] = {"kinds": TENANT, "own_tenant": True, "is_local": True}
_CLIENT_TOO: Final = "also say what this client's session did with it"

EXPLAIN: Final = (
    page(
        "/v1/tenants/{tenant_id}/explain/delivery",
        e.delivery,
        DeliveryView,
        "explain delivery",
        "Say whether a message to a topic would come to a client now, and which rule decides.",
        query=(
            Parameter("topic", _Name, "the topic that is published to"),
            Parameter("client_id", _Name, "the client that should get it"),
            Parameter(
                "qos", Annotated[int, msgspec.Meta(ge=0, le=2)], "at which it is sent", default=1
            ),
            Parameter("publisher", _Text, "the client that publishes", default=""),
            Parameter("principal", _Text, "whom the client's proof names", default=""),
            Parameter("publisher_principal", _Text, "whom the publisher's names", default=""),
        ),
        example="acme --topic lamp/7 --client-id screen-1",
        **{**_TENANTS, "roles": TENANT_READERS},
    ),
    page(
        "/v1/tenants/{tenant_id}/explain/message",
        e.trail,
        MessageTrail,
        "explain message",
        "Tell a past message's way through logs, partitions and sessions, from the logs.",
        query=(
            Parameter("message", _Message | None, "its id, as an answer named it", default=None),
            Parameter("stream", _Text | None, "a stream that has it", default=None),
            Parameter("partition", _Partition, "the partition of that stream", default=0),
            Parameter("offset", Count | None, "its offset there; none: 0", default=None),
            Parameter("client_id", _Text, _CLIENT_TOO, default=""),
        ),
        codes=(429,),
        example="acme --message 10-52-1f0a33d0c9be7714",
        **{**_TENANTS, "roles": _OWNERS},
    ),
    page(
        "/v1/tenants/{tenant_id}/receipts/{message}",
        e.receipt,
        DurabilityReceipt,
        "receipts get",
        "Let every replica sign what its own disk has of a message: proof of a quorum.",
        example="acme 10-52-1f0a33d0c9be7714",
        **{**_TENANTS, "kinds": {**TENANT, "message": _Message}, "roles": _OWNERS},
    ),
)
