"""A definition on trial beside the live machine, and the entry at which it comes into force."""

from __future__ import annotations

from hashlib import sha256

import pytest

from clustor.kv import Key, KvMachine, KvWritten, Put, StoreId, decode_reply, encode_command
from clustor.kv.definition import decode_definition
from clustor.log.types import Entry, EntryKind, LogIndex, Term
from clustor.replica import Activation, Shadow, ShadowState, apply_entry
from clustor.replica.activation import decode_activation, encode_activation
from clustor.replica.shadow import MILLION, QUEUE_BYTES_MAX, copy_under

STORE = StoreId(b"s" * 16)
SMALL = b'{"machine": "kv", "value_bytes_max": 4}'
UNUSABLE = {
    "no JSON": b"\xff",
    "another machine": b'{"machine": "broker"}',
    "an unknown member": b'{"machine": "kv", "colour": 1}',
    "nothing at all": b'{"machine": "kv", "value_bytes_max": 0}',
    "what no snapshot holds": b'{"machine": "kv", "value_bytes_max": 1000000000}',
    "too long": b'{"machine": "kv"' + b" " * 70_000 + b"}",
}


def put(key: bytes, value: bytes) -> bytes:
    return encode_command(Put(Key(key), value))


def live_with(*values: bytes) -> KvMachine:
    machine = KvMachine(STORE)
    for index, value in enumerate(values, 1):
        machine.apply_batch(index, [put(b"k%d" % index, value)])
    return machine


def trial(live: KvMachine, definition: bytes = SMALL) -> Shadow:
    shadow = Shadow(definition, live.applied_index)
    shadow.copied(*copy_under(lambda: KvMachine(STORE), live.snapshot(), definition)())
    return shadow


def feed(live: KvMachine, shadow: Shadow, index: int, *commands: bytes) -> None:
    shadow.offer(index, list(commands), live.apply_batch(index, commands))


@pytest.mark.parametrize("encoded", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_what_is_no_definition_of_a_store_is_never_ready_and_changes_nothing(
    encoded: bytes,
) -> None:
    live = live_with(b"1")
    before = live.digest()
    assert decode_definition(encoded) is None
    shadow = trial(live, encoded)
    assert (shadow.state, shadow.ready_ratio) == (ShadowState.UNUSABLE, 0)
    live.redefine(2, encoded)
    assert (live.digest(), live.is_defined_by(encoded)) == (before, False)


def test_a_shadow_is_as_ready_as_it_agrees_with_what_is_in_force() -> None:
    live = live_with(b"1", b"12345")  # the second could not be written under the new limits
    shadow = trial(live)
    assert shadow.ready_ratio == MILLION // 2
    feed(live, shadow, 3, put(b"k2", b"2"), put(b"k3", b"3"))
    assert (shadow.ready_ratio, shadow.checkpoint_index) == (3 * MILLION // 4, 3)
    feed(live, shadow, 4, put(b"k4", b"too long"))
    assert shadow.ready_ratio == 3 * MILLION // 5


def test_what_is_applied_while_the_copy_is_made_follows_after_it() -> None:
    live = live_with(b"1")
    shadow = Shadow(SMALL, live.applied_index)
    job = copy_under(lambda: KvMachine(STORE), live.snapshot(), SMALL)
    feed(live, shadow, 2, put(b"late", b"12345"))
    assert (shadow.ready_ratio, shadow.checkpoint_index) == (0, 1)
    shadow.copied(*job())
    assert (shadow.state, shadow.checkpoint_index) == (ShadowState.WARM, 2)
    assert shadow.ready_ratio == MILLION // 2


def test_a_queue_that_grows_too_long_ends_the_trial() -> None:
    live = live_with(b"1")
    shadow = Shadow(SMALL, live.applied_index)
    job = copy_under(lambda: KvMachine(STORE), live.snapshot(), SMALL)
    shadow.offer(2, [bytes(QUEUE_BYTES_MAX + 1)], [b""])
    shadow.copied(*job())
    assert (shadow.state, shadow.ready_ratio) == (ShadowState.OVERRUN, 0)


def activation(index: int, definition: bytes = SMALL, digest: bytes | None = None) -> Entry:
    words = Activation(
        "b1", 1, digest or sha256(definition).digest(), readiness_digest=b"r" * 32,
        definition=definition,
    )  # fmt: skip
    payload = encode_activation(words)
    return Entry(Term(1), LogIndex(index), payload, EntryKind.DEFINE_ACTIVATE)


def test_an_activation_holds_from_its_entry_on_and_travels_in_snapshots() -> None:
    live = live_with(b"1", b"12345")
    live.mark(2)
    assert apply_entry(live, activation(3)) == []
    assert live.is_defined_by(SMALL)
    assert live.delta(2) is None, "a delta carries no limits: the next snapshot is a full one"
    [refused] = live.apply_batch(4, [put(b"k", b"12345")])
    assert KvMachine.is_refusal(refused)
    [written] = live.apply_batch(5, [put(b"k", b"1234")])
    assert isinstance(decode_reply(written), KvWritten)
    other = KvMachine(STORE)
    other.restore(live.snapshot())
    assert other.is_defined_by(SMALL)
    assert other.digest() == live.digest()


@pytest.mark.parametrize(
    "entry",
    [activation(3, digest=bytes(32)), Entry(Term(1), LogIndex(3), b"?", EntryKind.DEFINE_ACTIVATE)],
    ids=["another digest", "no activation"],
)
def test_an_entry_that_is_no_activation_changes_nothing(entry: Entry) -> None:
    live = live_with(b"1")
    before = live.digest()
    with pytest.raises(ValueError, match="not"):
        decode_activation(entry.payload)
    apply_entry(live, entry)
    assert live.digest() == before
