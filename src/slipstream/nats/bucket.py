"""Open or create a bucket, by the client library or, where it cannot, by a plain request."""

from __future__ import annotations

import enum
import json
from typing import Any, Final

import nats.js.errors
from nats.js import api

from slipstream.errors import BucketUnavailable, InvalidKey, Timeout
from slipstream.nats.link import NatsBucketLink
from slipstream.types import StorageType, StoreConfig

_STREAM_NAME_IN_USE: Final = 10058
_SECOND_NS: Final = 1_000_000_000
_MARKER_SECONDS: Final = 60 * 60


class CreateOutcome(enum.Enum):
    """How a server answered a raw create."""

    CREATED = "created"
    EXISTS = "exists"
    AT_LIMIT = "at limit"  # the bucket may still be there
    REFUSED = "refused"


def checked_bucket(name: str) -> str:
    """Give the name back, or raise `InvalidKey`."""
    if not name or not all(mark.isascii() and (mark.isalnum() or mark in "-_") for mark in name):
        raise InvalidKey("a bucket name has letters, digits, - and _ only", bucket=name)
    return name


def stream_config(bucket: str, config: StoreConfig) -> dict[str, object]:
    """Give the JetStream configuration of a key-value bucket, as the server reads it."""
    wanted: dict[str, object] = {
        "name": f"KV_{bucket}",
        "subjects": [f"$KV.{bucket}.>"],
        "retention": "limits",
        "storage": "memory" if config.storage is StorageType.MEMORY else "file",
        "discard": "new",
        "max_msgs": -1,
        "max_consumers": -1,
        "max_msg_size": -1,
        "max_bytes": -1 if config.bytes_max is None else config.bytes_max,
        "max_msgs_per_subject": config.history_max,
        "max_age": round((config.age_seconds_max or 0) * _SECOND_NS),
        "num_replicas": config.replicas,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": False,
    }
    if config.per_key_ttl:
        wanted["allow_msg_ttl"] = True
        wanted["subject_delete_marker_ttl"] = _MARKER_SECONDS * _SECOND_NS
    return wanted


def classify_create_reply(reply: dict[str, Any]) -> CreateOutcome:
    """Read a raw answer to a create, whichever shape the server gives it."""
    error = reply.get("error")
    if not error:
        return CreateOutcome.CREATED
    if _STREAM_NAME_IN_USE in (error.get("code"), error.get("err_code")):
        return CreateOutcome.EXISTS
    if error.get("code") == 400 and "maximum number of streams" in error.get("description", ""):
        return CreateOutcome.AT_LIMIT
    return CreateOutcome.REFUSED


async def open_bucket(link: NatsBucketLink, config: StoreConfig) -> None:
    """Make sure that the bucket is there; an existing one keeps its settings."""
    try:
        await link.facts()
    except BucketUnavailable:
        await _create(link, config)


async def _create(link: NatsBucketLink, config: StoreConfig) -> None:
    wanted = api.StreamConfig.from_response(dict(stream_config(link.bucket, config)))
    try:
        await link.timed("create a bucket", link.jetstream.add_stream(wanted))
    except (Timeout, KeyError, TypeError, ValueError):
        # A hosted service answers in shapes that the client cannot parse, and is often slow.
        await create_bucket_raw(link, config)
    except Exception as error:
        if isinstance(error.__cause__, nats.js.errors.APIError):
            code = getattr(error.__cause__, "err_code", None)
            if code == _STREAM_NAME_IN_USE:  # Somebody created it meanwhile.
                return
        raise


async def create_bucket_raw(link: NatsBucketLink, config: StoreConfig) -> None:
    """Create the bucket by a plain request, and judge the answer by its codes."""
    request = json.dumps(stream_config(link.bucket, config)).encode()
    message = await link.timed(
        "create a bucket (raw)",
        link.client.request(
            f"$JS.API.STREAM.CREATE.{link.stream}", request, timeout=link.operation_seconds
        ),
    )
    reply = json.loads(message.data)
    match classify_create_reply(reply):
        case CreateOutcome.CREATED | CreateOutcome.EXISTS:
            return
        case CreateOutcome.AT_LIMIT:
            await link.facts()  # Raises when the bucket is not there after all.
        case CreateOutcome.REFUSED:
            reason = reply["error"].get("description", "")
            raise BucketUnavailable("the server refused to create the bucket", cause=reason)
