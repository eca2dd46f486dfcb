"""The MQTT 5 reason codes that the machine itself decides; the adapter knows the others."""

from typing import Final

SUCCESS: Final = 0x00
NO_SUBSCRIPTION_EXISTED: Final = 0x11
SESSION_GONE: Final = 0x80
PACKET_ID_NOT_FOUND: Final = 0x92
QUOTA_EXCEEDED: Final = 0x97
QUOTA_EXHAUSTED: Final = 0x197
"""The same, and the connection ends: the tenant's grace is used up. Its low byte is MQTT's."""
