"""What administrators' requests have in common: who may, and what a refusal is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from quantum.protocols.kafka.codec import KafkaCode
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.tenancy import Operation, ResourceKind
from quantum.tenants.binding import UNDER_TLS
from quantum.tenants.tenant_records import ChangeAsker, ChangeRefusal, ChangeRefused, TenantRecords

Refusal = tuple[KafkaCode, str | None]
NOT_ALLOWED: Final[Refusal] = (KafkaCode.cluster_authorization_failed, None)
_NO_RECORDS: Final[Refusal] = (
    KafkaCode.security_disabled,
    "this node has no control plane, where users, rules and quotas stand",
)
_CODES: Final[Mapping[ChangeRefusal, KafkaCode]] = {
    ChangeRefusal.NOT_ALLOWED: KafkaCode.cluster_authorization_failed,
    ChangeRefusal.INVALID: KafkaCode.invalid_request,
    ChangeRefusal.UNAVAILABLE: KafkaCode.request_timed_out,
}


def records_for(request: KafkaRequest, operation: Operation) -> TenantRecords | Refusal:
    """Return the tenant's records, or why this client hears nothing of them.

    The tenant's rules decide here, as for anything of the cluster; whether it may change anything
    the control plane's roles decide besides.
    """
    if not request.may(operation, ResourceKind.CLUSTER, ""):
        return NOT_ALLOWED
    records = request.node.records
    return _NO_RECORDS if records is None else records


def asker_of(request: KafkaRequest) -> ChangeAsker:
    peer = request.peer
    is_local = peer is not None and peer.transport not in UNDER_TLS
    return ChangeAsker(request.connection.principal, is_local)


def refusal_of(refused: ChangeRefused) -> Refusal:
    """Return Kafka's code and sentence for a change that was not made."""
    return _CODES[refused.why], refused.words
