"""The life of a NATS connection, and the factory of its buckets."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import nats
import nats.errors
from nats.aio.client import Client, RawCredentials

from slipstream.errors import ConnectionFailed, Misuse, NotConnected
from slipstream.nats.bucket import checked_bucket, open_bucket
from slipstream.nats.link import NatsBucketLink
from slipstream.nats.store import NatsKvStore
from slipstream.ports import DEFAULT_STORE_CONFIG
from slipstream.types import ConnectionCapabilities, StoreConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NatsConnectionConfig:
    """Where the server is, who we are, and how long we wait.

    Credentials: `creds` (the file's content in base64) before `creds_file`, before what the URL
    carries, before none.
    """

    url: str = "nats://127.0.0.1:4222"
    creds: str | None = None
    creds_file: str | None = None
    connect_seconds: float = 5.0
    operation_seconds: float = 30.0
    heartbeat_seconds: float = 5.0
    floor_probe_seconds: float = 30.0
    reconnect_wait_seconds: float = 0.5

    def __repr__(self) -> str:
        return f"NatsConnectionConfig(url={self.url.rpartition('@')[2]!r})"


class NatsConnection:
    """One client, shared by the buckets that it vends."""

    def __init__(self, config: NatsConnectionConfig | None = None) -> None:
        self._config = config or NatsConnectionConfig()
        self._client: Client | None = None
        self._owned = True
        self._healthy = False
        self._connecting = asyncio.Lock()
        self._on_reconnect: set[Callable[[], None]] = set()

    @classmethod
    def from_client(cls, client: Client, config: NatsConnectionConfig | None = None) -> Self:
        """Wrap a client that somebody else connected, and leave closing it to them.

        Its reconnects are not announced to us: watches notice them by the missing heartbeat.
        """
        connection = cls(config)
        connection._client, connection._owned = client, False
        return connection

    async def connect(self) -> None:
        """Open the link; concurrent callers share one attempt."""
        async with self._connecting:
            if self._client is not None:
                return
            self._client = await self._dial()
            self._healthy = True

    async def shutdown(self) -> None:
        """Close the link; `connect` may be called again."""
        async with self._connecting:
            client, self._client = self._client, None
            self._healthy = False
            if client is not None and self._owned:
                await client.close()

    @property
    def is_healthy(self) -> bool:
        """True while the link stands; costs nothing."""
        if self._client is not None and not self._owned:
            return self._client.is_connected
        return self._healthy

    @property
    def capabilities(self) -> ConnectionCapabilities:
        """What JetStream can do."""
        return ConnectionCapabilities(
            compare_and_set=True,
            streaming_watch=True,
            resumable_watch=True,
            multi_prefix_watch=True,
            per_key_ttl=True,
        )

    async def store(self, name: str, config: StoreConfig = DEFAULT_STORE_CONFIG) -> NatsKvStore:
        """Open a bucket, creating it with `config` if it is not there."""
        if self._client is None:
            raise NotConnected("connect first")
        link = NatsBucketLink(
            self._client,
            checked_bucket(name),
            operation_seconds=self._config.operation_seconds,
            heartbeat_seconds=self._config.heartbeat_seconds,
            floor_probe_seconds=self._config.floor_probe_seconds,
            on_reconnect=self._announce_reconnects,
        )
        await open_bucket(link, config)
        return NatsKvStore(link, per_key_ttl=config.per_key_ttl)

    def _announce_reconnects(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._on_reconnect.add(listener)
        return lambda: self._on_reconnect.discard(listener)

    async def _dial(self) -> Client:
        client = Client()

        async def on_disconnected() -> None:
            if self._client is client:
                self._healthy = False

        async def on_reconnected() -> None:
            if self._client is client:
                self._healthy = True
                for listener in tuple(self._on_reconnect):
                    listener()

        async def on_error(error: Exception) -> None:
            logger.debug("nats client: %r", error)

        try:
            async with asyncio.timeout(self._config.connect_seconds):
                await client.connect(
                    self._config.url,
                    error_cb=on_error,
                    disconnected_cb=on_disconnected,
                    reconnected_cb=on_reconnected,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=self._config.reconnect_wait_seconds,  # type: ignore[arg-type]  # floats are slept as given
                    connect_timeout=self._config.connect_seconds,  # type: ignore[arg-type]  # the same
                    user_credentials=_credentials(self._config),
                )
        except ImportError as error:
            raise Misuse("credentials need the package nkeys", missing=error.name) from error
        except (TimeoutError, OSError, nats.errors.Error) as error:
            reason = str(error) or type(error).__name__
            server = self._config.url.rpartition("@")[2]
            raise ConnectionFailed("cannot connect", server=server, cause=reason) from error
        # The first dial must fail when there is no server; later ones must go on for ever.
        client.options["max_reconnect_attempts"] = -1
        return client


def _credentials(config: NatsConnectionConfig) -> Any:
    if config.creds is None:
        return config.creds_file
    try:
        return RawCredentials(base64.b64decode(config.creds, validate=True).decode())
    except ValueError as error:
        raise Misuse("creds is not the base64 of a credentials file") from error
