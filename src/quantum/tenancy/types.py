"""The words of tenancy."""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

Principal = NewType("Principal", str)  # who a certificate or a token says is speaking


class QuotaVerdict(StrEnum):
    """What is done about a request, from mild to hard."""

    ADMIT = "admit"
    THROTTLE = "throttle"
    """Do it, and slow the sender down; clients see delayed acknowledgements."""
    REJECT = "reject"
    """Do not do it; clients see Quota exceeded (0x97)."""
    DISCONNECT = "disconnect"
    """Do not do it, and end the connection."""
