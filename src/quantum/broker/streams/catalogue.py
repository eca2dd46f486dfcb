"""Topics begin, grow, change and end: at the catalogue's PRG by a command, elsewhere by an item."""

from __future__ import annotations

from msgspec.structs import replace

from quantum.broker.streams.answers import Awaited, encode_reply
from quantum.broker.streams.section_items import StreamItem, TopicDefined, TopicEnded
from quantum.broker.streams.section_state import StreamState
from quantum.broker.streams.topics import (
    CATALOGUE_PRG,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
    TopicCommand,
    TopicReply,
    TopicSpec,
)
from quantum.broker.streams.types import StreamRefusal


def apply_topic(state: StreamState, command: TopicCommand) -> bytes:
    """Carry out an order everywhere, or say why not; the same order again changes nothing.

    Its answer waits until every PRG has it. An order whose answer was lost waits again.
    """
    command.now_ms = state.world.now_ms
    judged = _judge(state, command)
    if judged is not None and judged.refusal is not None:
        return encode_reply(judged)
    spec = state.topics.named(command.name)
    if judged is not None and spec is not None:
        return encode_reply(judged, _tell(state, TopicDefined(spec)))
    if isinstance(command, DeleteTopic):
        assert spec is not None
        state.end_topic(spec.number)
        return encode_reply(TopicReply(spec.number), _tell(state, TopicEnded(spec.number)))
    changed = _changed(state, command, spec)
    state.put_topic(changed)
    return encode_reply(TopicReply(changed.number), _tell(state, TopicDefined(changed)))


def _judge(state: StreamState, command: TopicCommand) -> TopicReply | None:
    if state.world.prg != CATALOGUE_PRG:
        words = "the catalogue of topics is another partition's"
        return TopicReply(0, StreamRefusal.NOT_COORDINATOR, words)
    if any(state.world.is_channel_full(prg) for prg in _others(state)):
        return TopicReply(0, StreamRefusal.BUSY, StreamRefusal.BUSY.value)
    return state.topics.judge(command)


def _changed(
    state: StreamState, command: CreateTopic | GrowTopic | AlterTopic, spec: TopicSpec | None
) -> TopicSpec:
    if isinstance(command, CreateTopic):
        state.topics.last_number += 1
        state.note_header()
        facts = (command.uuid, command.partitions, state.world.prg_count, command.configs)
        return TopicSpec(state.topics.last_number, command.name, *facts, command.now_ms)
    assert spec is not None
    if isinstance(command, GrowTopic):
        return replace(spec, partitions=command.partitions)
    return replace(spec, configs=command.configs)


def _others(state: StreamState) -> list[int]:
    world = state.world
    return [prg for prg in range(world.prg_count) if prg != world.prg]


def _tell(state: StreamState, item: StreamItem) -> Awaited:
    places = (state.send(prg, item) for prg in _others(state))
    return [place for place in places if place is not None]


def tell_of_topics(state: StreamState, prg: int) -> None:
    """Tell a partition that joins the ring of every topic: it knows of none yet."""
    if state.world.prg == CATALOGUE_PRG:
        for spec in state.topics:
            state.send(prg, TopicDefined(spec))
