"""What one node's Kafka requests need that no log decides: sessions, waiting, quotas, SASL."""

from quantum.protocols.kafka.requests.fetch_sessions import (
    FetchedFacts,
    FetchKey,
    FetchPlan,
    FetchSessions,
    WantedPartition,
)
from quantum.protocols.kafka.requests.refusal_codes import CODE_OF_REFUSAL, code_of
from quantum.protocols.kafka.requests.sasl import (
    OAUTHBEARER,
    PLAIN,
    CheckPassword,
    CheckToken,
    KafkaSaslExchange,
    LookUpScram,
    SaslQuestion,
    SaslReply,
    SaslStep,
)

__all__ = [
    "CODE_OF_REFUSAL",
    "OAUTHBEARER",
    "PLAIN",
    "CheckPassword",
    "CheckToken",
    "FetchKey",
    "FetchPlan",
    "FetchSessions",
    "FetchedFacts",
    "KafkaSaslExchange",
    "LookUpScram",
    "SaslQuestion",
    "SaslReply",
    "SaslStep",
    "WantedPartition",
    "code_of",
]
