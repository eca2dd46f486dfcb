"""Why a request got no answer, in one shape: what went wrong, and what to do about it.

Each refusal of the control plane has one row here: its HTTP status, and the next step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from clustor.control import RefusalCode, Refused


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """Every refusal looks like this."""

    error: str
    message: str
    next: str
    facts: dict[str, Any]
    request_id: str


class ApiError(Exception):
    """A request that is refused; `next` says what the caller can do."""

    def __init__(
        self,
        status: int,
        error: str,
        message: str,
        *,
        next: str,  # noqa: A002  # the word of the answer
        facts: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        is_recorded: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = error
        self.message = message
        self.next = next
        self.facts = dict(facts or {})
        self.headers = dict(headers or {})
        self.is_recorded = is_recorded  # in the control plane's own trail

    def body(self, request_id: str) -> ErrorBody:
        return ErrorBody(
            error=self.error,
            message=self.message,
            next=self.next,
            facts=self.facts,
            request_id=request_id,
        )


_CODE: Final = RefusalCode

REFUSALS: Final[Mapping[RefusalCode, tuple[int, str]]] = {
    _CODE.MALFORMED: (400, "send a command that this version knows: see /openapi.json"),
    _CODE.NOT_INITIALIZED: (409, "POST /v1/cluster/initialize first"),
    _CODE.ALREADY_INITIALIZED: (409, "nothing: the cluster is there; see /v1/cluster/state"),
    _CODE.UNAUTHORIZED: (403, "ask an Operator to bind one of the roles in /v1/roles"),
    _CODE.BREAK_GLASS_REFUSED: (
        403,
        "let an Operator issue a token for you and this scope (POST /v1/break-glass), and name it "
        "in the header Break-Glass; it works once, for five minutes at most",
    ),
    _CODE.REQUEST_ID_REUSED: (409, "choose a new Idempotency-Key for a new call"),
    _CODE.BUSY: (429, "repeat it in a second, under the same Idempotency-Key"),
    _CODE.NOT_FOUND: (404, "list what there is, then name one of those"),
    _CODE.ALREADY_EXISTS: (409, "choose another name, or change the one that is there"),
    _CODE.CONFLICT: (409, "read what stands now, and repeat with its version"),
    _CODE.INVALID: (422, "correct what the message names"),
    _CODE.IN_USE: (409, "free what the message names first"),
    _CODE.CAPACITY_EXCEEDED: (409, "stay below the limit, or cite an override of scope Capacity"),
    _CODE.ROUTING_EPOCH_MISMATCH: (409, "read the routing epoch that stands, and repeat with it"),
    _CODE.MODE_CONFLICT: (409, "read the group's durability mode and epoch, and repeat with it"),
    _CODE.UTILIZATION_EXCEEDED: (409, "choose emptier nodes, or cite an override"),
    _CODE.NOT_SURVIVABLE: (409, "choose nodes in more zones, or cite an override"),
    _CODE.PLACEMENT_DIGEST_MISMATCH: (409, "rehearse again, and repeat with the new digest"),
    _CODE.MEMBERSHIP_MISMATCH: (409, "read the group's placement, and report its members"),
    _CODE.OVERRIDE_REFUSED: (409, "record an override that covers this: POST /v1/overrides"),
    _CODE.BAD_SIGNATURE: (422, "sign with an active key of the registry: see /v1/keys"),
    _CODE.KEY_EPOCH_REPLAY: (409, "key epochs only grow: read /v1/keys"),
    _CODE.PREDICATE_MISMATCH: (409, "read the predicate's digest from /v1/features"),
    _CODE.NOT_SUPPORTED: (409, "upgrade the nodes that the facts name, then repeat"),
    _CODE.NOT_READY: (409, "wait for the partitions that the facts name"),
    _CODE.ACTIVATION_BARRIER_EXPIRED: (409, "arm a new barrier: POST /v1/barriers"),
    _CODE.FENCE_INCOMPLETE: (409, "let the standby catch up, or cite an override of Durability"),
    _CODE.PROOF_CONFLICT: (409, "look at /v1/proofs/conflicts, and clear it once it is mended"),
}


def of_refusal(refused: Refused) -> ApiError:
    """Say in the API's words what the control plane refused."""
    status, then = REFUSALS[refused.code]
    headers = {"Retry-After": "1"} if refused.code is RefusalCode.BUSY else {}
    return ApiError(
        status,
        refused.code.value,
        refused.reason,
        next=then,
        facts=refused.facts,
        headers=headers,
        is_recorded=True,
    )


def malformed(message: str, **facts: object) -> ApiError:
    return ApiError(
        400,
        "BadRequest",
        message,
        next="correct it; /openapi.json says what this page takes",
        facts=facts,
    )


def conflict(message: str, **facts: object) -> ApiError:
    status, then = REFUSALS[_CODE.CONFLICT]
    return ApiError(status, _CODE.CONFLICT.value, message, next=then, facts=facts)


def not_found(message: str, **facts: object) -> ApiError:
    return ApiError(404, "NotFound", message, next=REFUSALS[_CODE.NOT_FOUND][1], facts=facts)


def unauthenticated(error: str, message: str, **facts: object) -> ApiError:
    return ApiError(
        401,
        error,
        message,
        next="connect with a client certificate of this cluster that names you by a SPIFFE URI",
        facts=facts,
        headers={"WWW-Authenticate": "mutualTLS"},
    )


def forbidden(message: str, **facts: object) -> ApiError:
    return ApiError(
        403,
        RefusalCode.UNAUTHORIZED.value,
        message,
        next=REFUSALS[_CODE.UNAUTHORIZED][1],
        facts=facts,
    )


def unavailable(error: str, message: str, retry_after_ms: int, **facts: object) -> ApiError:
    """The control plane is out of reach, or this node's copy of it too old (clustor §5.1)."""
    return ApiError(
        503,
        error,
        message,
        next="repeat it later under the same Idempotency-Key, or at another node; what may be old "
        "can be read with ?linearizable=false",
        facts={"retry_after_ms": retry_after_ms, **facts},
        headers={"Retry-After": str(-(-retry_after_ms // 1000))},
    )
