"""The life of a link to a Clustor cluster, and the factory of its buckets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Self

from clustor.kv import Get, Key
from clustor.runtime.kv.client import KvClient
from clustor.runtime.peers.transport import Address
from slipstream.clustor.layout import BucketLayout
from slipstream.clustor.link import ClustorBucketLink, speaking
from slipstream.clustor.store import ClustorKvStore
from slipstream.errors import ConnectionFailed, Misuse, NotConnected, Timeout
from slipstream.ports import DEFAULT_STORE_CONFIG
from slipstream.types import ConnectionCapabilities, StoreConfig

_SCHEME: Final = "clustor://"
_PORT_MAX: Final = 65_535
_NO_KEY: Final = Get(Key(b"slipstream/"))


@dataclass(frozen=True, slots=True)
class ClustorConnectionConfig:
    """Where the nodes' admin ports are, and how long we wait. One address is enough to begin."""

    addresses: tuple[Address, ...]
    connect_seconds: float = 5.0
    operation_seconds: float = 30.0

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Read `clustor://HOST:PORT[,HOST:PORT…]`; raises `Misuse`."""
        return cls(tuple(_address(part) for part in url.removeprefix(_SCHEME).split(",")))


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit():
        raise Misuse("a cluster is clustor://HOST:PORT[,HOST:PORT…]", got=text)
    if not 0 < int(port) <= _PORT_MAX:
        raise Misuse("no such port", got=text)
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


class ClustorConnection:
    """One client, shared by the buckets that it vends. It finds the leader, and follows it."""

    def __init__(self, config: ClustorConnectionConfig) -> None:
        self._config = config
        self._client: KvClient | None = None
        self._connecting = asyncio.Lock()

    async def connect(self) -> None:
        """Open the link; returns when a leader has answered."""
        async with self._connecting:
            if self._client is not None:
                return
            client = KvClient(
                self._config.addresses, timeout_seconds=self._config.operation_seconds
            )
            try:
                async with asyncio.timeout(self._config.connect_seconds):
                    with speaking("connect"):
                        await client.execute(_NO_KEY)
            except BaseException as error:
                client.close()
                if isinstance(error, TimeoutError | Timeout):
                    raise self._no_answer() from error
                raise
            self._client = client

    def _no_answer(self) -> ConnectionFailed:
        nodes = ",".join(map(str, self._config.addresses))
        return ConnectionFailed("cannot connect: no leader answers", nodes=nodes)

    async def shutdown(self) -> None:
        """Close the link; `connect` may be called again."""
        async with self._connecting:
            client, self._client = self._client, None
            if client is not None:
                client.close()

    @property
    def is_healthy(self) -> bool:
        """True while the link stands; a broken one is made again by the next operation."""
        return self._client is not None and self._client.is_connected

    @property
    def capabilities(self) -> ConnectionCapabilities:
        """Everything."""
        return ConnectionCapabilities(
            compare_and_set=True,
            streaming_watch=True,
            resumable_watch=True,
            multi_prefix_watch=True,
            per_key_ttl=True,
        )

    async def store(self, name: str, config: StoreConfig = DEFAULT_STORE_CONFIG) -> ClustorKvStore:
        """Open a bucket, creating it with `config` if it is not there."""
        if self._client is None:
            raise NotConnected("connect first")
        link = ClustorBucketLink(self._client, BucketLayout(name))
        facts = await link.open(config)
        return ClustorKvStore(link, facts.config)
