"""What MQTT says for each reason of a partition: the one table between the two."""

from __future__ import annotations

from typing import Final, NamedTuple

from quantum.partition.reasons import RefusalReason
from quantum.protocols.mqtt.codec import ReasonCode


class Words(NamedTuple):
    """The reason code of an answer, and why its connection ends too; empty: it goes on."""

    code: ReasonCode
    ends: str = ""


REFUSALS: Final = {
    RefusalReason.SESSION_GONE: Words(ReasonCode.UNSPECIFIED_ERROR),
    RefusalReason.QUOTA_EXCEEDED: Words(ReasonCode.QUOTA_EXCEEDED),
    RefusalReason.QUOTA_EXHAUSTED: Words(
        ReasonCode.QUOTA_EXCEEDED, "the tenant is over its quota for long"
    ),
}
LOST: Final = Words(ReasonCode.QUOTA_EXCEEDED, "a publish could not be logged")
"""What a connection ends with when a publish of it can never be answered."""
