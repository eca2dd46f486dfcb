"""What is particular to NATS: ACK subjects, silent clamping, dead consumers, creation, timeouts."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nats.js import api

from slipstream.applied import watch_applied
from slipstream.errors import (
    BucketUnavailable,
    ConnectionFailed,
    InvalidKey,
    Misuse,
    NotConnected,
    StoreFailure,
    StoreReplaced,
    Timeout,
    WatchError,
)
from slipstream.folds import AppendLogSnapshot, SnapshotStore
from slipstream.nats import NatsConnection, NatsConnectionConfig, parse_ack
from slipstream.nats.bucket import CreateOutcome, classify_create_reply, create_bucket_raw
from slipstream.nats.filters import plan_filters
from slipstream.nats.messages import kind_of
from slipstream.nats.watcher import NatsWatch
from slipstream.types import (
    AppliedReport,
    KvUpdate,
    StorageType,
    StoreConfig,
    UpdateKind,
    WatchCursor,
    WatchScope,
)
from tests.slipstream.conftest import Bucket, NatsLab, fast, link_of
from tests.slipstream.fold_cases import contents
from tests.slipstream.servers import NatsServer
from tests.slipstream.test_conformance import ALL, brief, take

ACKS = {
    "legacy": ("$JS.ACK.KV_b.cons.1.42.7.1700000000000000123.5", (42, 7, 1700000000000000123, 5)),
    "modern": ("$JS.ACK.hub.acc.KV_b.cons.1.42.7.1700000000000000123.5", (42, 7, 1700000000000000123, 5)),  # noqa: E501
    "modern with token": ("$JS.ACK._.acc.KV_b.cons.2.42.7.17.0.xyz", (42, 7, 17, 0)),
    "ten tokens": ("$JS.ACK.a.b.c.d.1.2.3.4", None),
    "not an ack": ("_INBOX.abc", None),
    "another subject": ("$JS.NAK.KV_b.cons.1.42.7.17.5", None),
    "not a number": ("$JS.ACK.KV_b.cons.1.x.7.17.5", None),
    "empty": ("", None),
}  # fmt: skip


@pytest.mark.parametrize(("reply", "wanted"), ACKS.values(), ids=ACKS.keys())
def test_an_ack_subject_is_read_from_the_front(
    reply: str, wanted: tuple[int, int, int, int] | None
) -> None:
    assert parse_ack(reply) == wanted


FILTERS = {
    "all": (WatchScope.all(), (">",), None),
    "token": (WatchScope.prefix("a."), ("a.>",), None),
    "inside a token": (WatchScope.prefix("a.b"), ("a.>",), ("a.b",)),
    "no token": (WatchScope.prefix("ab"), (">",), ("ab",)),
    "union": (WatchScope.of_prefixes("a.", "b."), ("a.>", "b.>"), None),
    "overlap": (WatchScope.of_prefixes("a.", "a.b."), ("a.>",), None),
    "mixed": (WatchScope.of_prefixes("a.b", "c."), ("a.>", "c.>"), ("a.b", "c.")),
}


@pytest.mark.parametrize(("scope", "subjects", "narrow"), FILTERS.values(), ids=FILTERS.keys())
def test_a_scope_becomes_filters_that_never_overlap(
    scope: WatchScope, subjects: tuple[str, ...], narrow: tuple[str, ...] | None
) -> None:
    plan = plan_filters(scope, "$KV.b.")
    assert plan.subjects == tuple(f"$KV.b.{subject}" for subject in subjects)
    assert plan.narrow == narrow


KINDS: dict[str, tuple[dict[str, str] | None, int, UpdateKind]] = {
    "plain": (None, 3, UpdateKind.PUT),
    "other headers": ({"X": "y"}, 3, UpdateKind.PUT),
    "empty value": (None, 0, UpdateKind.DELETE),
    "delete": ({"KV-Operation": "DEL"}, 0, UpdateKind.DELETE),
    "purge": ({"KV-Operation": "PURGE"}, 0, UpdateKind.PURGE),
    "expired": ({"Nats-Marker-Reason": "MaxAge"}, 0, UpdateKind.DELETE),
    "removed": ({"Nats-Marker-Reason": "Remove"}, 0, UpdateKind.DELETE),
    "purged": ({"Nats-Marker-Reason": "Purge"}, 0, UpdateKind.PURGE),
    "unknown reason": ({"Nats-Marker-Reason": "Tomorrow"}, 0, UpdateKind.DELETE),
}


@pytest.mark.parametrize(("headers", "size", "kind"), KINDS.values(), ids=KINDS.keys())
def test_deletes_of_every_make_are_told_from_puts(
    headers: dict[str, str] | None, size: int, kind: UpdateKind
) -> None:
    assert kind_of(headers, size) is kind


CREATES: dict[str, tuple[dict[str, Any], CreateOutcome]] = {
    "created": ({"type": "x", "config": {}}, CreateOutcome.CREATED),
    "exists by code": ({"error": {"code": 10058}}, CreateOutcome.EXISTS),
    "exists by err_code": ({"error": {"code": 400, "err_code": 10058}}, CreateOutcome.EXISTS),
    "at limit": (
        {"error": {"code": 400, "description": "maximum number of streams reached"}},
        CreateOutcome.AT_LIMIT,
    ),
    "refused": ({"error": {"code": 500, "description": "no"}}, CreateOutcome.REFUSED),
}


@pytest.mark.parametrize(("reply", "outcome"), CREATES.values(), ids=CREATES.keys())
def test_a_raw_create_is_judged_by_its_codes(reply: dict[str, Any], outcome: CreateOutcome) -> None:
    assert classify_create_reply(reply) is outcome


async def test_a_bucket_is_made_by_a_raw_request_and_found_again(nats_lab: NatsLab) -> None:
    bucket = await nats_lab.bucket()
    link = link_of(bucket)
    await link.jetstream.delete_stream(link.stream)
    with pytest.raises(BucketUnavailable):
        await link.facts()
    await create_bucket_raw(link, StoreConfig(history_max=3))
    await create_bucket_raw(link, StoreConfig(history_max=3))  # It exists: no error.
    info = await link.jetstream.stream_info(link.stream)
    assert info.config.max_msgs_per_subject == 3
    await bucket.writer.put("a", b"1")
    assert await bucket.reader.keys() == ["a"]


async def test_a_bucket_is_created_as_its_settings_say(nats_lab: NatsLab) -> None:
    config = StoreConfig(
        bytes_max=5_000_000,
        history_max=4,
        age_seconds_max=30,
        storage=StorageType.MEMORY,
        per_key_ttl=True,
    )
    bucket = await nats_lab.bucket(config)
    made = (await link_of(bucket).jetstream.stream_info(link_of(bucket).stream)).config
    assert (made.max_bytes, made.max_msgs_per_subject, made.max_age) == (5_000_000, 4, 30)
    assert (made.storage, made.allow_msg_ttl, made.allow_direct) == ("memory", True, False)
    plain = await nats_lab.bucket()
    made = (await link_of(plain).jetstream.stream_info(link_of(plain).stream)).config
    assert (made.max_bytes, made.max_msgs_per_subject) == (10 * 1024 * 1024, 1)
    assert plain.ttl is None


async def test_a_value_beyond_the_servers_limits_is_a_typed_error(nats_lab: NatsLab) -> None:
    bucket = await nats_lab.bucket(StoreConfig(bytes_max=10_000))
    with pytest.raises(StoreFailure):
        await bucket.writer.put("large", bytes(2_000_000))
    with pytest.raises(StoreFailure):
        await bucket.writer.put("full", bytes(20_000))


async def test_an_unparseable_answer_to_a_create_falls_back_to_the_raw_request(
    nats_lab: NatsLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unparseable(*_: object, **__: object) -> None:
        raise KeyError("config")

    monkeypatch.setattr("nats.js.manager.JetStreamManager.add_stream", unparseable)
    bucket = await nats_lab.bucket()
    await bucket.writer.put("a", b"1")
    assert await bucket.reader.keys() == ["a"]


async def test_the_server_clamps_a_start_below_its_head_without_a_word(nats_lab: NatsLab) -> None:
    """Why `resume_window_ok` is ours to ask: the server delivers from its head, and no error."""
    bucket = await nats_lab.bucket()
    for n in range(10):
        await bucket.writer.put(f"k.{n}", b"v")
    await nats_lab.evict_through(bucket, 6)
    link = link_of(bucket)
    inbox = link.client.new_inbox()
    subscription = await link.client.subscribe(inbox)
    config = api.ConsumerConfig(
        deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=3,
        deliver_subject=inbox,
        ack_policy=api.AckPolicy.NONE,
    )
    await link.jetstream.add_consumer(link.stream, config)
    message = await subscription.next_msg(10)
    ack = parse_ack(message.reply)
    assert ack is not None
    assert ack.stream_sequence == 7
    await subscription.unsubscribe()


async def test_a_live_watch_that_retention_overran_fails_before_it_applies(
    nats_lab: NatsLab,
) -> None:
    bucket = await nats_lab.bucket()
    link = link_of(bucket)
    await bucket.writer.put("k.first", b"v")
    async with await bucket.watcher.watch(ALL) as watch:
        await take(watch, 2)
        await _paused(link, watch)
        await bucket.writer.delete("k.first")  # revision 2: its marker is what gets lost
        await bucket.writer.put("k.second", b"v")
        await nats_lab.evict_through(bucket, 2)
        await link.jetstream.resume_consumer(link.stream, _consumer(watch))
        with pytest.raises(WatchError) as caught:
            await take(watch, 1)
        assert caught.value.facts == {"frontier": 1, "first": 3}


async def test_a_gap_of_overwritten_keys_is_benign(nats_lab: NatsLab) -> None:
    bucket = await nats_lab.bucket()
    link = link_of(bucket)
    await bucket.writer.put("k.first", b"v")
    async with await bucket.watcher.watch(ALL) as watch:
        await take(watch, 2)
        await _paused(link, watch)
        for _ in range(5):
            await bucket.writer.put("k.hot", b"v")
        await link.jetstream.resume_consumer(link.stream, _consumer(watch))
        (event,) = await take(watch, 1)
        assert isinstance(event, KvUpdate)
        assert event.version.as_u64() == 6


async def test_the_backstop_notices_an_overrun_that_nothing_follows(
    nats_server: NatsServer,
) -> None:
    config = NatsConnectionConfig(nats_server.url, heartbeat_seconds=0.2, floor_probe_seconds=0.2)
    connection = NatsConnection(config)
    await connection.connect()
    lab = NatsLab(connection)
    bucket = await lab.bucket()
    link = link_of(bucket)
    await bucket.writer.put("k.first", b"v")
    async with await bucket.watcher.watch(ALL) as watch:
        await take(watch, 2)
        await _paused(link, watch)
        await bucket.writer.delete("k.first")
        await bucket.writer.put("k.second", b"v")
        await lab.evict_through(bucket, 3)
        with pytest.raises(WatchError, match="overran"):
            await take(watch, 1)
    await connection.shutdown()


async def test_a_lost_message_makes_a_new_consumer_from_the_last_delivery(
    nats_lab: NatsLab,
) -> None:
    bucket = await nats_lab.bucket()
    link = link_of(bucket)
    for n in range(3):
        await bucket.writer.put(f"k.{n}", b"v")
    async with await bucket.watcher.watch(ALL) as watch:
        assert isinstance(watch, NatsWatch)
        await take(watch, 4)
        first = _consumer(watch)
        watch._consumer_sequence += 1  # As if one had been dropped on the way.
        await bucket.writer.put("k.3", b"v")
        assert brief(await take(watch, 1)) == ["put k.3"]
        assert _consumer(watch) != first
        names = [info.name for info in await link.jetstream.consumers_info(link.stream)]
        assert _consumer(watch) in names


async def test_a_deleted_consumer_is_replaced(nats_lab: NatsLab) -> None:
    bucket = await nats_lab.bucket()
    link = link_of(bucket)
    async with await bucket.watcher.watch(ALL) as watch:
        await take(watch, 1)
        await link.jetstream.delete_consumer(link.stream, _consumer(watch))
        await bucket.writer.put("k", b"v")
        assert brief(await take(watch, 1)) == ["put k"]


async def test_many_prefixes_cost_one_consumer_that_acknowledges_nothing(
    nats_lab: NatsLab,
) -> None:
    bucket = await nats_lab.bucket()
    link = link_of(bucket)
    scope = WatchScope.of_prefixes("a.", "b.", "c.")
    async with await bucket.watcher.watch(scope) as watch:
        await take(watch, 1)
        (info,) = await link.jetstream.consumers_info(link.stream)
        assert info.config.ack_policy == api.AckPolicy.NONE
        assert len(info.config.filter_subjects) == 3


async def test_a_watch_leaves_no_consumer_behind(nats_lab: NatsLab) -> None:
    bucket = await nats_lab.bucket()
    link = link_of(bucket)
    async with await bucket.watcher.watch(ALL) as watch:
        await take(watch, 1)
    await bucket.reader.keys()
    assert await link.jetstream.consumers_info(link.stream) == []


async def test_a_bucket_recreated_under_a_live_watch_fails_it(nats_lab: NatsLab) -> None:
    bucket = await nats_lab.bucket()
    await bucket.writer.put("k", b"v")
    async with await bucket.watcher.watch(ALL) as watch:
        await take(watch, 2)
        await nats_lab.recreate(bucket)
        with pytest.raises(WatchError, match="replaced"):
            await take(watch, 1)


@pytest.fixture
async def own_lab(own_nats_server: NatsServer) -> AsyncIterator[NatsLab]:
    connection = NatsConnection(fast(own_nats_server.url))
    await connection.connect()
    yield NatsLab(connection)
    await connection.shutdown()


@pytest.mark.parametrize("scope", [ALL, WatchScope.prefix("k.")], ids=["all", "prefix"])
async def test_a_server_killed_under_a_live_watch_loses_nothing(
    own_nats_server: NatsServer, own_lab: NatsLab, scope: WatchScope
) -> None:
    bucket = await own_lab.bucket()
    await bucket.writer.put("k.0", b"v")
    async with await bucket.watcher.watch(scope) as watch:
        await take(watch, 2)
        for round_ in range(2):
            waiting = asyncio.ensure_future(take(watch, 2))
            await asyncio.to_thread(own_nats_server.kill)
            await asyncio.to_thread(own_nats_server.start)
            # Written by a second client, before the watch's own has come back perhaps.
            other = NatsConnection(fast(own_nats_server.url))
            await other.connect()
            writer = (await other.store(bucket.name)).writer()
            await writer.put(f"k.a{round_}", b"v")
            await writer.delete("k.0")
            await other.shutdown()
            assert brief(await waiting) == [f"put k.a{round_}", "delete k.0"]


async def test_a_reconnect_is_enough_to_revive_a_watch(own_nats_server: NatsServer) -> None:
    """Long before its heartbeat is missed."""
    config = NatsConnectionConfig(
        own_nats_server.url, heartbeat_seconds=600, reconnect_wait_seconds=0.05
    )
    connection = NatsConnection(config)
    await connection.connect()
    bucket = await NatsLab(connection).bucket()
    async with await bucket.watcher.watch(ALL) as watch:
        await take(watch, 1)
        waiting = asyncio.ensure_future(take(watch, 1))
        await _restarted(own_nats_server, NatsLab(connection), lambda: None)
        await bucket.writer.put("k", b"v")
        assert brief(await waiting) == ["put k"]
    await connection.shutdown()


async def test_a_watch_outlives_a_server_that_stays_away_for_a_while(
    own_nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    config = NatsConnectionConfig(
        own_nats_server.url,
        heartbeat_seconds=0.1,
        floor_probe_seconds=0.01,
        operation_seconds=0.2,
        reconnect_wait_seconds=0.05,
    )
    connection = NatsConnection(config)
    await connection.connect()
    bucket = await NatsLab(connection).bucket()
    await bucket.writer.put("k.0", b"v")
    with caplog.at_level("INFO", logger="slipstream"):
        async with await bucket.watcher.watch(ALL) as watch:
            await take(watch, 2)
            waiting = asyncio.ensure_future(take(watch, 1))
            await asyncio.to_thread(own_nats_server.kill)
            async with asyncio.timeout(90):
                while caplog.text.count("cannot re-create the consumer yet") < 3:
                    assert not waiting.done(), waiting
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(own_nats_server.start)
            await _until_healthy(NatsLab(connection), wanted=True)
            await bucket.writer.put("k.1", b"v")
            assert brief(await waiting) == ["put k.1"]
    await connection.shutdown()


async def test_a_bucket_restored_from_an_older_copy_is_not_trusted(
    own_nats_server: NatsServer, own_lab: NatsLab, tmp_path: Path
) -> None:
    """Same name, same birth, and its revisions have caught up: the witness gives it away."""
    bucket = await own_lab.bucket()
    for n in range(5):
        await bucket.writer.put(f"k.{n}", b"v")
    storage, backup = own_nats_server.storage, tmp_path / "backup"
    await _restarted(own_nats_server, own_lab, lambda: shutil.copytree(storage, backup))
    for n in range(5, 10):
        await bucket.writer.put(f"k.{n}", b"v")
    async with await bucket.watcher.watch(ALL) as watch:
        events = await take(watch, 11)
        last = events[9]
        assert isinstance(last, KvUpdate)
        cursor = WatchCursor(last.version.raw, watch.store_identity, b"", last.witness)

    def restore() -> None:
        shutil.rmtree(storage)
        shutil.copytree(backup, storage)

    await _restarted(own_nats_server, own_lab, restore)
    with pytest.raises(StoreReplaced, match="backwards"):
        await bucket.watcher.watch(ALL, after=cursor)
    for n in range(8):
        await bucket.writer.put(f"other.{n}", b"v")
    with pytest.raises(StoreReplaced, match="not the one that was seen"):
        await bucket.watcher.watch(ALL, after=cursor)


async def test_a_restored_bucket_is_found_out_even_when_its_witness_is_gone(
    own_nats_server: NatsServer, own_lab: NatsLab, tmp_path: Path
) -> None:
    """Restored, and one key written over and over: no revision near the cursor is left to ask."""
    bucket = await own_lab.bucket()
    for n in range(5):
        await bucket.writer.put(f"k.{n}", b"v")
    storage, backup = own_nats_server.storage, tmp_path / "backup"
    await _restarted(own_nats_server, own_lab, lambda: shutil.copytree(storage, backup))
    for n in range(4, 10):
        await bucket.writer.put(f"k.{n}", b"lost in the restore")
    with AppendLogSnapshot.load(tmp_path / "fold") as fold:
        await _followed(bucket, fold)

        def restore() -> None:
            shutil.rmtree(storage)
            shutil.copytree(backup, storage)

        await _restarted(own_nats_server, own_lab, restore)
        for _ in range(20):
            await bucket.writer.put("hot", b"v")
        report = await _followed(bucket, fold)
        assert (report.audited, report.resynced) == (True, True)
        wanted = {entry.key: entry.value for entry in await bucket.reader.scan()}
        assert contents(fold) == wanted
        again = await _followed(bucket, fold)
        assert (again.audited, again.resynced) == (False, False)


async def _followed(bucket: Bucket, fold: SnapshotStore) -> AppliedReport:
    return await watch_applied(
        bucket.watcher, reader=bucket.reader, fold=fold, until_caught_up=True
    )


async def test_health_follows_the_link(own_nats_server: NatsServer, own_lab: NatsLab) -> None:
    await _until_healthy(own_lab, wanted=True)
    await asyncio.to_thread(own_nats_server.kill)
    await _until_healthy(own_lab, wanted=False)
    await asyncio.to_thread(own_nats_server.start)
    await _until_healthy(own_lab, wanted=True)


async def test_a_half_dead_server_is_a_timeout_and_not_a_hang() -> None:
    """It shakes hands, answers pings, and never a request."""

    async def half_dead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"server_id": "x", "version": "2.15.0", "headers": True, "max_payload": 1 << 20}
        writer.write(f"INFO {json.dumps(info)}\r\n".encode())
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(half_dead, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = NatsConnectionConfig(f"nats://127.0.0.1:{port}", operation_seconds=0.2)
    connection = NatsConnection(config)
    await connection.connect()
    with pytest.raises(Timeout) as caught:
        await connection.store("bucket")
    assert caught.value.facts["seconds"] == 0.2
    await connection.shutdown()
    server.close()
    await server.wait_closed()


def test_operations_are_bounded_by_thirty_seconds() -> None:
    assert NatsConnectionConfig().operation_seconds == 30
    assert NatsConnectionConfig().floor_probe_seconds == 30


async def test_a_cancellation_that_arrives_with_the_answer_is_not_swallowed(
    nats_lab: NatsLab,
) -> None:
    bucket = await nats_lab.bucket()
    link = link_of(bucket)
    answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(link.timed("wait", asyncio.wait_for(answered, 10)))
    await asyncio.sleep(0)
    answered.set_result("in the same turn of the loop")
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_no_server_is_said_at_once() -> None:
    connection = NatsConnection(NatsConnectionConfig("nats://user:secret@127.0.0.1:1"))
    with pytest.raises(ConnectionFailed) as caught:
        await connection.connect()
    assert "secret" not in str(caught.value)
    with pytest.raises(NotConnected):
        await connection.store("bucket")


async def test_what_cannot_be_meant_is_refused(
    nats_lab: NatsLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidKey):
        await nats_lab.connection.store("no.dots")
    with pytest.raises(Misuse):
        await NatsConnection(NatsConnectionConfig(creds="%%%")).connect()
    content = base64.b64encode(b"-----BEGIN NATS USER JWT-----\nx\n").decode()
    monkeypatch.setitem(sys.modules, "nkeys", None)  # as where that package is missing
    with pytest.raises(Misuse, match="nkeys"):
        await NatsConnection(NatsConnectionConfig(creds=content)).connect()


async def test_a_foreign_client_is_used_and_left_open(nats_lab: NatsLab) -> None:
    bucket = await nats_lab.bucket()
    client = link_of(bucket).client
    wrapped = NatsConnection.from_client(client)
    assert wrapped.is_healthy
    store = await wrapped.store(bucket.name)
    await store.writer().put("a", b"1")
    await wrapped.shutdown()
    assert client.is_connected


def _consumer(watch: object) -> str:
    assert isinstance(watch, NatsWatch)
    assert watch._consumer is not None
    return watch._consumer


async def _paused(link: Any, watch: object) -> None:
    """Let the server hold deliveries back, as a slow link would."""
    until = datetime.now(UTC) + timedelta(hours=1)
    await link.jetstream.pause_consumer(link.stream, _consumer(watch), until.isoformat())


async def _until_healthy(lab: NatsLab, *, wanted: bool) -> None:
    async with asyncio.timeout(90):
        while lab.connection.is_healthy is not wanted:
            await asyncio.sleep(0.01)


async def _restarted(server: NatsServer, lab: NatsLab, meanwhile: Callable[[], object]) -> None:
    await asyncio.to_thread(server.stop)
    await _until_healthy(lab, wanted=False)
    meanwhile()
    await asyncio.to_thread(server.start)
    await _until_healthy(lab, wanted=True)
