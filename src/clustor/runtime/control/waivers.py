"""`POST /revocation/waiver`: a signed waiver, brought by hand to a node that is cut off (§12.1).

A node in revocation quarantine has ended its connections, so no word of the control plane reaches
it any more. It takes the override itself then, as it would stand in the ledger, and believes the
office's key that its copy knows. One that stands in the ledger already is used without this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from clustor.control import KeyPurpose, OverrideScope, RecordOverride
from clustor.control.commands import decode_command
from clustor.control.signing import verifies
from clustor.security import SecurityMisuse
from clustor.security.revocation import WAIVER_MS_MAX
from clustor.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from clustor.runtime.node import Node
    from clustor.runtime.pki.certificate_watch import NodeTrust


def take_waiver(node: Node, trust: NodeTrust | None, body: bytes) -> tuple[int, object]:
    """Believe and use a waiver, or say why not."""
    if trust is None or node.control is None:
        return 409, {"error": "this node has no control plane, so it knows no key that could sign"}
    try:
        override = decode_command(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 400, {"error": "not a RecordOverride in JSON"}
    if not isinstance(override, RecordOverride):
        return 400, {"error": "not a RecordOverride in JSON"}
    if override.scope is not OverrideScope.QUARANTINE or override.partitions:
        return 403, {"error": "a waiver is an override of scope Quarantine for all partitions"}
    now_ms = wall_clock_ms()
    purpose, signature = KeyPurpose.CP_RELEASE, override.signature
    if not verifies(node.control.cache, purpose, override.content(), signature, now_ms):
        return 403, {"error": "no CPReleaseKey that this node knows has signed it"}
    ttl_ms = min(override.expires_at - now_ms, WAIVER_MS_MAX)
    try:
        trust.waive(override.override_id, ttl_ms)
    except SecurityMisuse as error:
        return 409, {"error": str(error)}
    return 200, {"waived_ms": ttl_ms}
