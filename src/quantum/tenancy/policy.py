"""What a tenant chooses for its clients, within what the specification leaves open."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from quantum.tenancy.buckets import Rates
from quantum.tenancy.credits import SLOTS_MAX
from quantum.tenancy.quotas import Quotas


class AclRefusal(StrEnum):
    """What a client gets for what the access rules refuse (C14)."""

    REASON_CODE = "reason_code"
    DISCONNECT = "disconnect"


class SharedDistribution(StrEnum):
    """How a group shares its messages among its members (C12)."""

    ROUND_ROBIN = "round_robin"
    HASH = "hash"


class Wills(StrEnum):
    """What becomes of the will when a client takes its own session over (C23)."""

    CONTINUED = "continued"
    """Nothing is said while the same proven identity goes on with its session."""
    STANDARD = "standard"


class ConnectionAudit(StrEnum):
    """How many of the connections that came and went the audit log tells of."""

    SAMPLED = "sampled"
    """The first few of each while, and how many more there were."""
    ALL = "all"
    OFF = "off"


class FullQueueChoice(StrEnum):
    """What becomes of messages for a lasting session whose queue is full (C24)."""

    BLOCK = "block"
    """Publishers of what it wants wait."""
    DROP_OLDEST = "drop-oldest"
    DROP_NEWEST = "drop-newest"
    END_SESSION = "end-session"


class TopicNames(StrEnum):
    """How clients name topics (§11.1)."""

    LOCAL = "local"
    PREFIXED = "prefixed"
    """With `tenant/<tenant_id>/` in front, which is checked and taken off."""


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """One tenant's choices; the defaults are the rulings'."""

    acl_refusal: AclRefusal = AclRefusal.REASON_CODE
    shared_distribution: SharedDistribution = SharedDistribution.ROUND_ROBIN
    topic_names: TopicNames = TopicNames.LOCAL
    wills: Wills = Wills.CONTINUED
    connection_audit: ConnectionAudit = ConnectionAudit.SAMPLED
    full_queues: FullQueueChoice = FullQueueChoice.BLOCK
    in_flight_max: int = SLOTS_MAX
    quotas: Quotas = Quotas()
    rates: Rates = Rates()
