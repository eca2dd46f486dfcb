"""Streams begin, take what is published, are trimmed and end: each by a committed command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from clustor.streams.changes import StreamAppend, StreamDefine, StreamRemove, StreamTrim
from quantum.broker.commands import CreateStream, DeleteStream, TrimStreams
from quantum.broker.interest import send_item
from quantum.broker.items import StreamDefined, StreamDeleted
from quantum.broker.state import BrokerState
from quantum.broker.stream_table import CATALOGUE_PRG, Stream, StreamReply, StreamSpec, refuse_spec
from quantum.model.records import MQTT_RECORDS

_encode = msgspec.msgpack.encode

BATCH_BYTES_MAX: Final = 256 << 10
"""A batch is what a reader gets at least; one large message may be more."""


def apply_create_stream(state: BrokerState, command: CreateStream) -> bytes:
    """Begin a stream everywhere, or say why not; the same command again changes nothing."""
    state.see_time(command.now_ms)
    known = state.streams.named(command.name)
    if known is not None and _is_asked_again(known.spec, command):
        return _encode(StreamReply(known.number, _awaited(state)))
    refused = _refuse(state, command, known)
    if refused:
        return _encode(StreamReply(0, [], refused))
    state.streams.last_number += 1
    spec = StreamSpec(
        state.streams.last_number,
        command.name,
        tuple(command.filters),
        command.retention_ms,
        command.retention_bytes,
        state.now_ms,
    )
    begin_stream(state, spec)
    for prg in _others(state):
        send_item(state, state.way(prg), StreamDefined(spec))
    return _encode(StreamReply(spec.number, _awaited(state)))


def _is_asked_again(spec: StreamSpec, command: CreateStream) -> bool:
    kept = (spec.filters, spec.retention_ms, spec.retention_bytes)
    return kept == (tuple(command.filters), command.retention_ms, command.retention_bytes)


def _refuse(state: BrokerState, command: CreateStream, known: Stream | None) -> str:
    if state.settings.prg != CATALOGUE_PRG:
        return "the catalogue of streams is another partition's"
    if known is not None:
        return "there is a stream of this name, with other filters or another retention"
    if len(state.streams) >= state.settings.streams_max:
        return f"a tenant has at most {state.settings.streams_max} streams"
    if any(state.channels.to(state.way(prg)).is_full for prg in _others(state)):
        return "another partition is gone or far behind: try again when it is back"
    trie = state.routes.trie
    forks = [each for each in command.filters if trie.forks_with(each) > trie.wild_forks]
    if trie.wild_forks + len(forks) > state.settings.wild_forks_max:
        return "the filters of all fork too far: every publish would cost too much"
    return refuse_spec(command.name, command.filters)


def _others(state: BrokerState) -> list[int]:
    return [prg for prg in range(state.prg_count) if prg != state.settings.prg]


def _awaited(state: BrokerState) -> list[tuple[int, int]]:
    """Name the places that the other partitions must have before a stream is everywhere."""
    ways = [state.way(prg) for prg in _others(state)]
    outboxes = [(way, state.channels.to(way)) for way in ways]
    return [(way, outbox.last) for way, outbox in outboxes if outbox.items]


def begin_stream(state: BrokerState, spec: StreamSpec) -> None:
    """Let a stream begin in this partition; the second time does nothing.

    Nor does a name that another stream has: the catalogue never says that, and names stay unique.
    """
    if state.streams.get(spec.number) is not None or state.streams.named(spec.name) is not None:
        return
    stream = Stream(spec, state.settings.prg)
    state.streams.put(stream)
    state.changes.streams.add(spec.number)
    watch_filters(state, stream)
    state.note_stream(StreamDefine(stream.file_id))


def watch_filters(state: BrokerState, stream: Stream) -> None:
    """Let routes know what a stream captures."""
    for topic_filter in stream.spec.filters:
        state.routes.trie.add(topic_filter, stream, None)


def apply_delete_stream(state: BrokerState, command: DeleteStream) -> bytes:
    """End a stream everywhere; one that is not there is no error, but is said."""
    state.see_time(command.now_ms)
    known = state.streams.named(command.name)
    if state.settings.prg != CATALOGUE_PRG or known is None:
        return _encode(StreamReply(0, [], "there is no stream of this name"))
    end_stream(state, known.number)
    for prg in _others(state):
        send_item(state, state.way(prg), StreamDeleted(known.number))
    return _encode(StreamReply(known.number, _awaited(state)))


def end_stream(state: BrokerState, number: int) -> None:
    """Let a stream end in this partition."""
    stream = state.streams.drop(number)
    if stream is None:
        return
    state.changes.streams.add(number)
    for topic_filter in stream.spec.filters:
        state.routes.trie.remove(topic_filter, stream)
    state.note_stream(StreamRemove(stream.file_id))


def tell_fresh_of_streams(state: BrokerState, channel: int) -> None:
    """Tell a partition that joins the ring of every stream: it knows of none yet."""
    if state.settings.prg == CATALOGUE_PRG:
        for stream in state.streams:
            send_item(state, channel, StreamDefined(stream.spec))


def apply_trim_streams(state: BrokerState, command: TrimStreams) -> bytes:
    """Let streams start later. What is not there any more is passed over."""
    state.see_time(command.now_ms)
    for number, offset in command.trims:
        stream = state.streams.get(number)
        start = 0 if stream is None else min(offset, stream.next_offset)
        if stream is not None and start > stream.start_offset:
            stream.start_offset = start
            state.changes.streams.add(number)
            state.note_stream(StreamTrim(stream.file_id, start))
    return b""


def capture(state: BrokerState, streams: list[Stream], record: bytes) -> None:
    """Note that streams keep a message that was taken."""
    captured = state.captured
    for stream in streams:
        kept = captured.get(stream)
        if kept is None:
            captured[stream] = [record]
        else:
            kept.append(record)


def append_captured(state: BrokerState) -> None:
    """Give what one command brought its offsets: batches of the command's time."""
    for stream, records in state.captured.items():
        for batch in _batches(records):
            payload = MQTT_RECORDS + b"".join(batch)
            count = len(batch)
            state.note_stream(
                StreamAppend(stream.file_id, stream.next_offset, count, state.now_ms, payload)
            )
            stream.next_offset += count
        state.changes.streams.add(stream.number)
    state.captured = {}


def _batches(records: list[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for record in records:
        if batch and size + len(record) > BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(record)
    yield batch
