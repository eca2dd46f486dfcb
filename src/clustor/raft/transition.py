"""DurabilityTransition: the entry that fences Strict and Group-Fsync apart (clustor §7.2)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from clustor.log.types import DurabilityMode, DurabilityModeEpoch

_BYTES = struct.Struct("<BI")


@dataclass(frozen=True, slots=True)
class Transition:
    to_mode: DurabilityMode
    durability_mode_epoch: DurabilityModeEpoch


def encode_transition(transition: Transition) -> bytes:
    return _BYTES.pack(transition.to_mode, transition.durability_mode_epoch)


def decode_transition(payload: bytes) -> Transition:
    """Read the payload back; a ValueError means that it is not such an entry."""
    if len(payload) != _BYTES.size:
        raise ValueError("not a durability transition")
    mode, epoch = _BYTES.unpack(payload)
    return Transition(DurabilityMode(mode), DurabilityModeEpoch(epoch))
