"""How a connection shows who it is: SASL's mechanisms as one machine that asks and is told.

Nothing is verified here: the machine asks (`CheckPassword`, `LookUpScram`, `CheckToken`), the
driver finds out, off the loop where that takes long, and tells it. One answer goes to the client
for each message of it; after a failure the connection is answered and closed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from quantum.protocols.kafka.codec import KafkaCode
from quantum.tenancy import ScramCredential, ScramExchange

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
TOKEN_BYTES_MAX: Final = 32 << 10
_NAME_BYTES_MAX: Final = 1_024


@dataclass(frozen=True, slots=True)
class CheckPassword:
    """Ask: is this the user's password? Tell `on_password`."""

    user: str
    password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class LookUpScram:
    """Ask: what is kept for this user? Tell `on_credential`."""

    mechanism: str
    user: str


@dataclass(frozen=True, slots=True)
class CheckToken:
    """Ask: whose token is this, and for how long? Tell `on_token`."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SaslReply:
    """What goes to the client. `principal` is set once it is known who it is."""

    error: KafkaCode
    data: bytes = b""
    principal: str | None = None
    session_ms: int = 0
    reason: str | None = None


SaslQuestion = CheckPassword | LookUpScram | CheckToken
SaslStep = SaslReply | SaslQuestion
_FAILED: Final = KafkaCode.sasl_authentication_failed
_WRONG: Final = "authentication failed"  # the same words for every cause: who asks learns nothing


class KafkaSaslExchange:
    """One exchange: a handshake that names a mechanism, then messages until it is decided."""

    def __init__(
        self, mechanisms: tuple[str, ...], draw_nonce: Callable[[], str], decoy_secret: bytes
    ) -> None:
        self._mechanisms = mechanisms
        self._draw_nonce = draw_nonce
        self._decoy_secret = decoy_secret
        self.mechanism = ""
        """What the client chose; empty: nothing yet."""
        self._asked: SaslQuestion | None = None
        self._scram: ScramExchange | None = None
        self._refused_token = False
        self.principal: str | None = None
        self.failed = False

    def on_handshake(self, mechanism: str) -> KafkaCode:
        """Take the client's choice; SaslHandshake answers with the list whatever it was."""
        if self.mechanism or self.failed or self.principal is not None:
            self.failed = True
            return KafkaCode.illegal_sasl_state
        if mechanism not in self._mechanisms:
            self.failed = True
            return KafkaCode.unsupported_sasl_mechanism
        self.mechanism = mechanism
        return KafkaCode.none

    def on_message(self, data: bytes) -> SaslStep:
        """Take what SaslAuthenticate brought: the answer, or what must be found out first."""
        if not self.mechanism or self.failed or self.principal is not None or self._asked:
            self.failed = True
            return SaslReply(KafkaCode.illegal_sasl_state, reason="no authentication is under way")
        if self.mechanism == PLAIN:
            return self._on_plain(data)
        if self.mechanism == OAUTHBEARER:
            return self._on_bearer(data)
        return self._on_scram(data)

    def _fail(self) -> SaslReply:
        self.failed = True
        return SaslReply(_FAILED, reason=_WRONG)

    def _ask(self, question: SaslQuestion) -> SaslQuestion:
        self._asked = question
        return question

    def _take_asked(self) -> SaslQuestion:
        asked, self._asked = self._asked, None
        assert asked is not None, "an answer that nobody asked for"
        return asked

    def _on_plain(self, data: bytes) -> SaslStep:
        parts = data.split(b"\0")
        if len(parts) != 3 or len(data) > 2 * _NAME_BYTES_MAX or not parts[1] or not parts[2]:
            return self._fail()
        try:
            authzid, user = parts[0].decode(), parts[1].decode()
        except UnicodeDecodeError:
            return self._fail()
        if authzid not in {"", user}:
            return self._fail()
        return self._ask(CheckPassword(user, parts[2]))

    def on_password(self, *, matches: bool) -> SaslReply:
        """Tell whether the password was the user's."""
        asked = self._take_asked()
        assert isinstance(asked, CheckPassword)
        return self._succeed(asked.user) if matches else self._fail()

    def _succeed(self, principal: str, data: bytes = b"", session_ms: int = 0) -> SaslReply:
        self.principal = principal
        return SaslReply(KafkaCode.none, data, principal, session_ms)

    def _on_scram(self, data: bytes) -> SaslStep:
        if self._scram is None:
            self._scram = ScramExchange(self.mechanism, self._decoy_secret)
            user = self._scram.on_first(data)
            return self._fail() if user is None else self._ask(LookUpScram(self.mechanism, user))
        final = self._scram.on_final(data)
        return self._fail() if final is None else self._succeed(self._scram.user, final)

    def on_credential(
        self, credential: ScramCredential | None, like: ScramCredential | None = None
    ) -> SaslReply:
        """Tell what is kept for the user; None is an unknown one, who is led on and refused."""
        asked = self._take_asked()
        assert isinstance(asked, LookUpScram)
        assert self._scram is not None
        shown = self._scram.on_credential(credential, self._draw_nonce, like)
        return SaslReply(KafkaCode.none, shown)

    def _on_bearer(self, data: bytes) -> SaslStep:
        if self._refused_token:
            return self._fail()  # the client has heard why, and says so (RFC 7628, 3.2.3)
        token = _read_bearer(data)
        return self._fail() if token is None else self._ask(CheckToken(token))

    def on_token(self, principal: str | None, session_ms: int = 0) -> SaslReply:
        """Tell whose token it is; the client must authenticate again within `session_ms`."""
        asked = self._take_asked()
        assert isinstance(asked, CheckToken)
        if principal is not None:
            return self._succeed(principal, session_ms=session_ms)
        self._refused_token = True
        return SaslReply(KafkaCode.none, b'{"status":"invalid_token"}')


def _read_bearer(data: bytes) -> str | None:
    """Read a token from the client's only message (RFC 7628, 3.1)."""
    if len(data) > TOKEN_BYTES_MAX:
        return None
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        return None
    header, *pairs = text.split("\x01")
    if not header.startswith("n,") or not header.endswith(",") or pairs[-2:] != ["", ""]:
        return None
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key == "auth" and value[:7].lower() == "bearer ":
            return value[7:].strip() or None
    return None
