"""A key service with AWS's envelope API (`TrentService.Encrypt` and `.Decrypt`), signed SigV4.

Only what an envelope needs: wrap a key once, open it at every start. Credentials come from the
environment's usual variables. Off loopback the service is spoken to over TLS alone.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from clustor.log.errors import KeyUnavailable
from clustor.runtime.admin.http import is_loopback_name

SERVICE: Final = "kms"
SECONDS_MAX: Final = 10.0
_ANSWER_BYTES_MAX: Final = 64 << 10
_CONTENT_TYPE: Final = "application/x-amz-json-1.1"
_ALGORITHM: Final = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class ServiceAccess:
    """Who asks a key service; the session token is empty for lasting credentials."""

    access_key: str
    secret_key: str
    session_token: str = ""


def access_from(environment: Mapping[str, str]) -> ServiceAccess:
    """Take the credentials of the environment, or raise KeyUnavailable."""
    access, secret = (
        environment.get(f"AWS_{name}", "") for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
    )
    if not access or not secret:
        raise KeyUnavailable("a key service needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    return ServiceAccess(access, secret, environment.get("AWS_SESSION_TOKEN", ""))


class KeyService:
    """One key of one service. Both calls block, and belong to a start."""

    def __init__(
        self,
        url: str,
        region: str,
        key_id: str,
        access: ServiceAccess,
        *,
        context: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`context` is bound to what is wrapped: only who says the same opens it.

        Raises KeyUnavailable for an address that is none, or is plaintext off loopback.
        """
        found = urlsplit(url)
        if found.scheme not in ("http", "https") or not found.hostname:
            raise KeyUnavailable("a key service is an https address", url=url)
        if found.scheme == "http" and not is_loopback_name(found.hostname):
            raise KeyUnavailable("a key service off loopback is asked over TLS alone", url=url)
        self._is_tls, self._host, self._port = found.scheme == "https", found.hostname, found.port
        self._region, self._key_id, self._access = region, key_id, access
        self._context = dict(context or {})
        self._now = now

    def encrypt(self, plaintext: bytes) -> bytes:
        """Wrap a short secret under the service's key."""
        said = self._ask("Encrypt", {"KeyId": self._key_id, "Plaintext": _text(plaintext)})
        return _bytes(said, "CiphertextBlob")

    def decrypt(self, sealed: bytes) -> bytes:
        """Open what `encrypt` wrapped."""
        said = self._ask("Decrypt", {"KeyId": self._key_id, "CiphertextBlob": _text(sealed)})
        return _bytes(said, "Plaintext")

    def _ask(self, call: str, wanted: dict[str, object]) -> dict[str, object]:
        if self._context:
            wanted["EncryptionContext"] = self._context
        body = json.dumps(wanted).encode()
        headers = sign_request(
            body,
            f"TrentService.{call}",
            self._netloc,
            region=self._region,
            access=self._access,
            now=self._now(),
        )
        try:
            code, answer = self._post(body, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise KeyUnavailable("the key service does not answer", cause=error) from error
        if code != 200:
            kind = str(answer.get("__type", "")).rpartition("#")[2]
            raise KeyUnavailable("the key service refused", call=call, code=code, kind=kind)
        return answer

    @property
    def _netloc(self) -> str:
        return self._host if self._port is None else f"{self._host}:{self._port}"

    def _post(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, dict[str, object]]:
        connection: http.client.HTTPConnection
        if self._is_tls:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=SECONDS_MAX, context=context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=SECONDS_MAX)
        try:
            connection.request("POST", "/", body, dict(headers))
            response = connection.getresponse()
            found = json.loads(response.read(_ANSWER_BYTES_MAX))
        finally:
            connection.close()
        if not isinstance(found, dict):
            raise ValueError("not an object")
        return response.status, found


def sign_request(
    body: bytes, target: str, netloc: str, *, region: str, access: ServiceAccess, now: datetime
) -> dict[str, str]:
    """Return the headers of a signed POST to `/` (AWS Signature Version 4)."""
    moment = f"{now:%Y%m%dT%H%M%SZ}"
    headers = {
        "content-type": _CONTENT_TYPE,
        "host": netloc,
        "x-amz-date": moment,
        "x-amz-target": target,
    }
    if access.session_token:
        headers["x-amz-security-token"] = access.session_token
    names = sorted(headers)
    signed = ";".join(names)
    lines = "".join(f"{name}:{headers[name]}\n" for name in names)
    request = f"POST\n/\n\n{lines}\n{signed}\n{hashlib.sha256(body).hexdigest()}"
    scope = f"{moment[:8]}/{region}/{SERVICE}/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{access.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    to_sign = f"{_ALGORITHM}\n{moment}\n{scope}\n{digest}".encode()
    signature = hmac.digest(key, to_sign, "sha256").hex()
    credential = f"Credential={access.access_key}/{scope}"
    headers["authorization"] = (
        f"{_ALGORITHM} {credential}, SignedHeaders={signed}, Signature={signature}"
    )
    return headers


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(answer: Mapping[str, object], name: str) -> bytes:
    try:
        return base64.b64decode(str(answer[name]), validate=True)
    except (KeyError, ValueError) as error:
        raise KeyUnavailable("the key service gave no answer", missing=name) from error
