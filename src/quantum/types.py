"""The words that every room of Quantum shares."""

from __future__ import annotations

from typing import NewType

TenantId = NewType("TenantId", str)  # one DNS label: it is a part of host names and of keys
ClientId = NewType("ClientId", bytes)  # UTF-8, as it came; unique within one tenant
