"""A small Kafka client for commands: one request after the other, to whoever leads."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema

from quantum.protocols.kafka.codec import (
    ApiKey,
    KafkaCode,
    KafkaRecord,
    MalformedRequest,
    build_batch,
    decode,
    encode,
    iterate_records,
    read_header,
    shape,
    versions_of,
)

_VERSIONS: Final[Mapping[ApiKey, int]] = {
    ApiKey.METADATA: 8,
    ApiKey.LIST_OFFSETS: 5,
    ApiKey.PRODUCE: 8,
    ApiKey.FETCH: 11,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.LIST_GROUPS: 4,
    ApiKey.DESCRIBE_GROUPS: 4,
    ApiKey.DELETE_GROUPS: 1,
    ApiKey.OFFSET_FETCH: 5,
    ApiKey.CREATE_TOPICS: 4,
    ApiKey.DELETE_TOPICS: 3,
    ApiKey.CREATE_PARTITIONS: 1,
    ApiKey.DESCRIBE_CONFIGS: 2,
    ApiKey.LIST_TRANSACTIONS: 0,
    ApiKey.DESCRIBE_TRANSACTIONS: 0,
}
_AGAIN: Final = frozenset(
    {
        *(KafkaCode.not_leader_or_follower, KafkaCode.leader_not_available),
        *(KafkaCode.not_coordinator, KafkaCode.coordinator_not_available),
        *(KafkaCode.coordinator_load_in_progress, KafkaCode.request_timed_out),
        KafkaCode.not_enough_replicas,
    }
)
_PATIENCE_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.1
_ANSWER_BYTES_MAX: Final = 128 << 20
_HEAD: Final = struct.Struct(">hhih")
_TIMEOUT_MS: Final = 30_000
_FETCH_BYTES: Final = 4 << 20
LATEST: Final = -1
EARLIEST: Final = -2


class KafkaRefused(Exception):
    """A broker said no; its code's name, and the sentence that came with it."""

    def __init__(self, code: KafkaCode, reason: str | None = None) -> None:
        super().__init__(f"{code.name}: {reason}" if reason else code.name)
        self.code = code


class KafkaCaller:
    """One connection to one broker."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        plain = socket.create_connection((host, port), timeout=_PATIENCE_SECONDS)
        self._socket = (
            plain if context is None else context.wrap_socket(plain, server_hostname=host)
        )
        self._calls = 0

    def call(self, key: ApiKey, facts: Mapping[str, Any]) -> Any:
        """Ask, and wait for the answer. Raises OSError and MalformedRequest."""
        version = _VERSIONS[key]
        flexible = version >= versions_of(key, version).flexible_from
        body = encode(shape(load_request_schema(key, version), facts))
        self._calls += 1
        name = b"quantum"
        head = _HEAD.pack(key, version, self._calls, len(name)) + name
        request = head + (b"\x00" if flexible else b"") + body
        self._socket.sendall(len(request).to_bytes(4, "big") + request)
        size = int.from_bytes(self._take(4), "big")
        if size > _ANSWER_BYTES_MAX:
            raise MalformedRequest("an answer too large", length=size)
        answer = self._take(size)
        return decode(load_response_schema(key, version), answer, 5 if flexible else 4)

    def _take(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self._socket.recv(size - len(found))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            found += piece
        return bytes(found)

    def close(self) -> None:
        self._socket.close()


def tls_context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return what TLS is spoken with; None: none is."""
    if ca is None:
        return None
    context = ssl.create_default_context(cafile=str(ca))
    if cert is not None:
        context.load_cert_chain(str(cert), None if key is None else str(key))
    return context


class KafkaCluster:
    """A cluster behind one of its brokers; others are called as they lead."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None = None) -> None:
        self._first = (host, port)
        self._context = context
        self._open: dict[tuple[str, int], KafkaCaller] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        for each in self._open.values():
            each.close()

    def _at(self, place: tuple[str, int]) -> KafkaCaller:
        if place not in self._open:
            self._open[place] = KafkaCaller(*place, self._context)
        return self._open[place]

    def ask(self, key: ApiKey, facts: Mapping[str, Any]) -> Any:
        """Ask the broker that was named."""
        return self._at(self._first).call(key, facts)

    def brokers(self) -> list[int]:
        self.metadata([])
        return sorted(self._brokers)

    def ask_node(self, node: int, key: ApiKey, facts: Mapping[str, Any]) -> Any:
        return self._at(self._brokers[node]).call(key, facts)

    def metadata(self, names: list[str] | None) -> Any:
        """Learn who leads what; None: of every topic."""
        topics = None if names is None else [{"name": each} for each in names]
        found = self.ask(
            ApiKey.METADATA,
            {
                "topics": topics,
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )
        self._brokers = {each.node_id: (each.host, each.port) for each in found.brokers}
        for topic in found.topics:
            for each in topic.partitions:
                self._leaders[topic.name, each.partition_index] = each.leader_id
        return found

    def topic(self, name: str) -> Any:
        """Return a topic's row. Raises KafkaRefused where there is none."""
        (row,) = self.metadata([name]).topics
        if row.error_code is not KafkaCode.none:
            raise KafkaRefused(row.error_code)
        return row

    def at_leader(self, topic: str, p: int, key: ApiKey, facts: Mapping[str, Any]) -> Any:
        """Ask who leads a partition. Raises KafkaRefused while nobody does."""
        node = self._leaders.get((topic, p), -1)
        if node not in self._brokers:
            raise KafkaRefused(KafkaCode.leader_not_available)
        return self._at(self._brokers[node]).call(key, facts)

    def at_coordinator(self, name: str, key: ApiKey, facts: Mapping[str, Any]) -> Any:
        """Ask who coordinates a group."""
        found = self.ask(ApiKey.FIND_COORDINATOR, {"key": name, "key_type": 0})
        if found.error_code is not KafkaCode.none:
            raise KafkaRefused(found.error_code, found.error_message)
        return self._at((found.host, found.port)).call(key, facts)

    def again(self, what: Any) -> Any:
        """Try until it is not refused for a leader that changes."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return what()
            except KafkaRefused as refused:
                if refused.code not in _AGAIN or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_SECONDS)
            self.metadata(None)

    # Records.

    def offset(self, topic: str, p: int, timestamp: int) -> int:
        """Return where a partition ends (LATEST), begins (EARLIEST), or was at a time."""

        def once() -> int:
            wanted = {"partition_index": p, "current_leader_epoch": -1, "timestamp": timestamp}
            facts = {"replica_id": -1, "isolation_level": 0}
            rows = {"topics": [{"name": topic, "partitions": [wanted]}]}
            found = self.at_leader(topic, p, ApiKey.LIST_OFFSETS, facts | rows)
            row = found.topics[0].partitions[0]
            _check(row.error_code)
            return int(row.offset)

        return int(self.again(once))

    def produce(self, topic: str, p: int, records: list[KafkaRecord]) -> int:
        """Produce a batch; return the first record's offset once it is durable on a quorum."""

        def once() -> int:
            data = {"index": p, "records": build_batch(records)}
            facts: dict[str, Any] = {"transactional_id": None, "acks": -1, "timeout": _TIMEOUT_MS}
            facts["topic_data"] = [{"name": topic, "partition_data": [data]}]
            found = self.at_leader(topic, p, ApiKey.PRODUCE, facts)
            row = found.responses[0].partition_responses[0]
            _check(row.error_code, row.error_message)
            return int(row.base_offset)

        return int(self.again(once))

    def fetch(self, topic: str, p: int, offset: int, wait_ms: int) -> tuple[list[KafkaRecord], int]:
        """Read from an offset: what was committed, and the offset to go on at."""

        def once() -> tuple[list[KafkaRecord], int]:
            found = self.at_leader(topic, p, ApiKey.FETCH, _fetch_facts(topic, p, offset, wait_ms))
            _check(found.error_code)
            row = found.responses[0].partitions[0]
            _check(row.error_code)
            aborted = [
                (each.producer_id, each.first_offset) for each in row.aborted_transactions or ()
            ]
            return _committed(row.records or b"", offset, aborted)

        found: tuple[list[KafkaRecord], int] = self.again(once)
        return found


def _check(code: KafkaCode, reason: str | None = None) -> None:
    if code is not KafkaCode.none:
        raise KafkaRefused(code, reason)


def _fetch_facts(topic: str, p: int, offset: int, wait_ms: int) -> dict[str, Any]:
    partition = {
        "partition": p,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "log_start_offset": -1,
        "partition_max_bytes": _FETCH_BYTES,
    }
    return {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": _FETCH_BYTES,
        "isolation_level": 1,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def _batches(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 12 <= len(data):
        size = read_header(data, at).size
        if at + size > len(data):
            return
        yield data[at : at + size]
        at += size


def _committed(
    data: bytes, offset: int, aborted: list[tuple[int, int]]
) -> tuple[list[KafkaRecord], int]:
    """Leave out control batches and what aborted transactions brought."""
    records: list[KafkaRecord] = []
    dropped: set[int] = set()
    waiting = sorted(aborted, key=lambda each: each[1])
    following = offset
    for batch in _batches(data):
        header = read_header(batch)
        while waiting and waiting[0][1] <= header.base_offset:
            dropped.add(waiting.pop(0)[0])
        if header.is_control:
            dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            records += [each for each in iterate_records(batch) if each.offset >= offset]
        following = header.last_offset + 1
    return records, following
