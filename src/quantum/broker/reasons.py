"""The MQTT 5 reason codes that the machine itself decides; the adapter knows the others."""

from typing import Final

SUCCESS: Final = 0x00
NO_SUBSCRIPTION_EXISTED: Final = 0x11
SESSION_GONE: Final = 0x80
PACKET_ID_NOT_FOUND: Final = 0x92
QUOTA_EXCEEDED: Final = 0x97
