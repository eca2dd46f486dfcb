"""What can go wrong between us and a Kafka client's bytes.

KafkaError
├── KafkaMisuse            our caller asked for bytes that the protocol cannot mean
├── RequestFault           a request that cannot be answered: close that connection
│   ├── MalformedRequest       bytes that cannot be read as the schema says
│   ├── RequestTooLarge        its length alone is beyond the bound; its body was never held
│   └── UnsupportedRequest     an API or a version that we do not speak
└── BatchRefused           a record batch that is not stored: answer its partition with `code`
    └── CorruptBatch           a stored or received batch whose inside cannot be read
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode as KafkaCode


class KafkaError(Exception):
    """The root: a sentence for people in `reason`, and `facts` for machines; never a payload."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class KafkaMisuse(KafkaError, ValueError):
    """Our caller asked for a message that the protocol cannot mean."""


class RequestFault(KafkaError):
    """The client broke the protocol where no answer has a shape: its connection ends."""


class MalformedRequest(RequestFault):
    """Bytes that cannot be read as the request's schema says."""


class RequestTooLarge(RequestFault):
    """A request whose announced length is beyond the bound of its API."""


class UnsupportedRequest(RequestFault):
    """An API or a version that we do not speak; ApiVersions alone has an answer for that."""

    def __init__(self, api_key: int, api_version: int) -> None:
        super().__init__("unsupported API or version", api_key=api_key, api_version=api_version)
        self.api_key = api_key
        self.api_version = api_version


class BatchRefused(KafkaError):
    """A record batch that must not be stored; `code` is what its partition is answered."""

    def __init__(self, code: KafkaCode, reason: str, **facts: object) -> None:
        super().__init__(reason, **facts)
        self.code = code


class CorruptBatch(BatchRefused):
    """A batch whose bytes are damaged, or whose records cannot be read within the bounds."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(KafkaCode.corrupt_message, reason, **facts)
