"""A listener on loopback that answers stock clients by our codec, and keeps what they sent.

It is no broker: one node, memory, and no rules. It shows that clients take what the codec writes,
and it is where the golden requests come from.
"""

from __future__ import annotations

import socket
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from quantum.protocols.kafka.codec import (
    ApiKey,
    BatchRefused,
    FetchedPartition,
    KafkaRequestReader,
    ProducedPartition,
    RequestFault,
    RequestHead,
    answer,
    answer_api_versions,
    check_produced,
    decode_request,
    encode_fetch_response,
    encode_produce_response,
    place,
    read_head,
    read_header,
    scan_produce,
    stamp_append_time,
)

SERVED = {
    *(ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_COMMIT),
    *(ApiKey.OFFSET_FETCH, ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT),
    *(ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP, ApiKey.API_VERSIONS, ApiKey.INIT_PRODUCER_ID),
    *(ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN),
    *(ApiKey.TXN_OFFSET_COMMIT, ApiKey.CREATE_TOPICS, ApiKey.LIST_GROUPS),
    *(ApiKey.DESCRIBE_CLUSTER, ApiKey.DELETE_TOPICS),
}
HIDDEN = frozenset(set(ApiKey) - SERVED)
PARTITIONS = 2
NODE = {"node_id": 1, "broker_id": 1, "rack": None}


def topic_id(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_URL, name)


class Listener:
    """Serve one test; `requests` is all that came, in the order of arrival."""

    hidden = HIDDEN

    def __init__(self, *, append_time_ms: int | None = None) -> None:
        self.requests: list[bytes] = []
        self.faults: list[RequestFault] = []
        self.refused: list[BatchRefused] = []
        self.logs: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.names: dict[uuid.UUID, str] = {}
        self._append_time_ms = append_time_ms
        self._joined = 0
        self._lock = threading.Lock()
        self._grown = threading.Condition(self._lock)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._open: list[socket.socket] = []

    def close(self) -> None:
        for each in (self._server, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def run(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        reader = KafkaRequestReader(admitted=True)
        reply_to = self.connect()
        try:
            while data := connection.recv(1 << 16):
                reader.receive(data)
                while (request := reader.next_request()) is not None:
                    self.requests.append(request)
                    if reply := reply_to(request):
                        connection.sendall(reply)
        except RequestFault as fault:
            self.faults.append(fault)
        except OSError:
            pass
        finally:
            connection.close()

    def connect(self) -> Callable[[bytes], bytes]:
        """Begin with a connection: give what answers its requests."""
        return self.reply

    def reply(self, request: bytes) -> bytes:
        head = read_head(request)
        if head.api_key == ApiKey.API_VERSIONS:
            return answer_api_versions(head, hidden=self.hidden)
        if head.api_key == ApiKey.PRODUCE:
            return self._produce(head, request)
        body: Any = decode_request(head, request)
        if head.api_key == ApiKey.FETCH:
            return self._fetch(head, body)
        with self._lock:
            facts = getattr(self, f"_on_{ApiKey(head.api_key).name.lower()}")(head, body)
        return answer(head, facts)

    def _produce(self, head: RequestHead, request: bytes) -> bytes:
        _, acks, _, rows = scan_produce(request, head.body_start, head.api_version)
        topics: dict[bytes, list[ProducedPartition]] = defaultdict(list)
        for topic, index, start, end in rows:
            batch = None if start < 0 else memoryview(request)[start:end]
            try:
                check_produced(batch, api_version=head.api_version)
            except BatchRefused as refused:
                self.refused.append(refused)
                topics[topic].append(ProducedPartition(index, refused.code))
                continue
            assert batch is not None
            base = self._append(topic.decode(), index, bytearray(batch))
            topics[topic].append(ProducedPartition(index, 0, base, -1, 0))
        if acks == 0:
            return b""
        return encode_produce_response(head.api_version, head.correlation_id, list(topics.items()))

    def _append(self, topic: str, index: int, batch: bytearray) -> int:
        with self._grown:
            log = self.logs[topic, index]
            base = self.end_of(topic, index)
            if self._append_time_ms is not None:
                stamp_append_time(batch, self._append_time_ms)
            place(batch, base, 0)
            log.append(bytes(batch))
            self._grown.notify_all()
        return base

    def end_of(self, topic: str, index: int) -> int:
        log = self.logs[topic, index]
        return read_header(log[-1]).last_offset + 1 if log else 0

    def _fetch(self, head: RequestHead, body: Any) -> bytes:
        with self._grown:
            topics = self._fetched(head, body)
            if not any(each.batches for _, rows in topics for each in rows):
                self._grown.wait(min(0.05, body.max_wait.total_seconds()))
                topics = self._fetched(head, body)
        return b"".join(encode_fetch_response(head.api_version, head.correlation_id, topics))

    def _fetched(self, head: RequestHead, body: Any) -> list[tuple[bytes, list[FetchedPartition]]]:
        topics = []
        for topic in body.topics:
            name = self.names[topic.topic_id] if head.api_version >= 13 else topic.topic
            rows = []
            for each in topic.partitions:
                end = self.end_of(name, each.partition)
                batches = [
                    memoryview(batch)
                    for batch in self.logs[name, each.partition]
                    if read_header(batch).last_offset >= each.fetch_offset
                ]
                rows.append(FetchedPartition(each.partition, 0, end, end, 0, batches))
            key = topic.topic_id.bytes if head.api_version >= 13 else name.encode()
            topics.append((key, rows))
        return topics

    def _topic(self, name: str) -> dict[str, Any]:
        self.names[topic_id(name)] = name
        partition = {"leader_id": 1, "leader_epoch": 0, "error_code": 0, "offline_replicas": ()}
        nodes = {"replica_nodes": (1,), "isr_nodes": (1,)}
        rows = [partition | nodes | {"partition_index": nth} for nth in range(PARTITIONS)]
        return {
            "name": name,
            "topic_id": topic_id(name),
            "is_internal": False,
            "partitions": rows,
        }

    def _on_metadata(self, head: RequestHead, body: Any) -> dict[str, Any]:
        wanted = [each.name for each in body.topics or ()] or list(self.names.values())
        node = NODE | {"host": "127.0.0.1", "port": self.port}
        return {
            "brokers": [node],
            "cluster_id": "listener",
            "controller_id": 1,
            "topics": [self._topic(each) for each in wanted],
        }

    def _on_describe_cluster(self, head: RequestHead, body: Any) -> dict[str, Any]:
        node = NODE | {"host": "127.0.0.1", "port": self.port}
        return {
            "cluster_id": "listener",
            "controller_id": 1,
            "brokers": [node],
            "error_message": None,
        }

    def _on_list_offsets(self, head: RequestHead, body: Any) -> dict[str, Any]:
        def row(topic: str, each: Any) -> dict[str, Any]:
            end = self.end_of(topic, each.partition_index)
            offset = 0 if each.timestamp == -2 else end
            return {"partition_index": each.partition_index, "timestamp": -1, "offset": offset}

        return {
            "topics": [
                {"name": each.name, "partitions": [row(each.name, one) for one in each.partitions]}
                for each in body.topics
            ]
        }

    def _on_find_coordinator(self, head: RequestHead, body: Any) -> dict[str, Any]:
        keys = body.coordinator_keys if head.api_version >= 4 else (body.key,)
        node = NODE | {"host": "127.0.0.1", "port": self.port, "error_message": None}
        return node | {"coordinators": [node | {"key": key} for key in keys]}

    def _on_join_group(self, head: RequestHead, body: Any) -> dict[str, Any]:
        self._joined += 1
        member = body.member_id or f"member-{self._joined}"
        chosen = body.protocols[0]
        row = {"member_id": member, "group_instance_id": None, "metadata": chosen.metadata}
        return {
            "generation_id": self._joined,
            "protocol_type": body.protocol_type,
            "protocol_name": chosen.name,
            "leader": member,
            "skip_assignment": False,
            "member_id": member,
            "members": [row],
        }

    def _on_sync_group(self, head: RequestHead, body: Any) -> dict[str, Any]:
        mine = [each.assignment for each in body.assignments if each.member_id == body.member_id]
        return {"protocol_type": None, "protocol_name": None, "assignment": (mine or [b""])[0]}

    def _on_heartbeat(self, head: RequestHead, body: Any) -> dict[str, Any]:
        return {}

    def _on_leave_group(self, head: RequestHead, body: Any) -> dict[str, Any]:
        return {"members": []}

    def _on_offset_commit(self, head: RequestHead, body: Any) -> dict[str, Any]:
        for topic in body.topics:
            for each in topic.partitions:
                place_of = (body.group_id, topic.name, each.partition_index)
                self.offsets[place_of] = each.committed_offset
        return {"topics": _same_partitions(body.topics)}

    _on_txn_offset_commit = _on_offset_commit

    def _on_offset_fetch(self, head: RequestHead, body: Any) -> dict[str, Any]:
        def topics(group: str, wanted: Any) -> list[dict[str, Any]]:
            return [
                {
                    "name": each.name,
                    "partitions": [
                        {
                            "partition_index": index,
                            "committed_offset": self.offsets.get((group, each.name, index), -1),
                            "committed_leader_epoch": -1,
                            "metadata": "",
                        }
                        for index in each.partition_indexes
                    ],
                }
                for each in wanted or ()
            ]

        if head.api_version >= 8:
            groups = body.groups
            return {
                "groups": [
                    {"group_id": each.group_id, "topics": topics(each.group_id, each.topics)}
                    for each in groups
                ]
            }
        return {"topics": topics(body.group_id, body.topics)}

    def _on_init_producer_id(self, head: RequestHead, body: Any) -> dict[str, Any]:
        return {"producer_id": 7, "producer_epoch": 0}

    def _on_end_txn(self, head: RequestHead, body: Any) -> dict[str, Any]:
        return {"producer_id": 7, "producer_epoch": body.producer_epoch + 1}

    def _on_add_offsets_to_txn(self, head: RequestHead, body: Any) -> dict[str, Any]:
        return {}

    def _on_add_partitions_to_txn(self, head: RequestHead, body: Any) -> dict[str, Any]:
        return {
            "results_by_topic_v3_and_below": [
                {
                    "name": each.name,
                    "results_by_partition": [
                        {"partition_index": index, "partition_error_code": 0}
                        for index in each.partitions
                    ],
                }
                for each in body.v3_and_below_topics
            ]
        }

    def _on_create_topics(self, head: RequestHead, body: Any) -> dict[str, Any]:
        return {
            "topics": [
                {"name": each.name, "topic_id": topic_id(each.name), "error_message": None}
                | {"num_partitions": PARTITIONS, "replication_factor": 1, "configs": None}
                for each in body.topics
            ]
        }

    def _on_delete_topics(self, head: RequestHead, body: Any) -> dict[str, Any]:
        names = body.topic_names if head.api_version < 6 else [each.name for each in body.topics]
        return {"responses": [{"name": each, "topic_id": None} for each in names]}

    def _on_list_groups(self, head: RequestHead, body: Any) -> dict[str, Any]:
        return {"groups": []}


def _same_partitions(topics: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": each.partition_index, "error_code": 0}
                for each in topic.partitions
            ],
        }
        for topic in topics
    ]


@contextmanager
def listening(listener: Any = None, **options: Any) -> Iterator[Any]:
    """Run a listener for a block; what it could not read fails the test there."""
    listener = listener or Listener(**options)
    threading.Thread(target=listener.run, daemon=True).start()
    try:
        yield listener
    finally:
        listener.close()
    assert not listener.faults, listener.faults
