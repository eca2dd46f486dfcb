"""Deltas of a store: full and deltas give the state that they were taken of, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustor.kv import (
    ClientId,
    Command,
    Key,
    KvLimits,
    KvMachine,
    Put,
    SnapshotRefused,
    StoreId,
    encode_command,
)
from tests.clustor.kv.commands_drawn import commands

STORE = StoreId(b"s" * 16)
LIMITS = KvLimits(events_max=10_000, clients_max=7)


def put(number: int) -> bytes:
    return encode_command(Put(Key(b"k%d" % (number % 9)), b"%d" % number))


@given(st.lists(st.lists(commands(), max_size=30), min_size=1, max_size=5))
def test_a_chain_of_deltas_gives_what_the_machine_has(runs: list[list[Command]]) -> None:
    machine, copy = KvMachine(STORE, LIMITS), KvMachine(STORE, LIMITS)
    index = base = 0
    machine.mark(base)
    for run in runs:
        for command in run:
            index += 1
            machine.apply(index, encode_command(command))
        pieces = machine.delta(base)
        base = index
        machine.mark(base)
        if pieces is None:  # its history was compacted past the mark: only a whole one will do
            copy.restore(machine.snapshot())
        else:
            index += 1
            digest = machine.digest()
            machine.apply(index, put(index))  # later than the delta: it must not show
            copy.restore_delta(pieces)
            assert copy.digest() == digest
            machine.restore(copy.snapshot())
            machine.mark(base)
            index = max(base, machine.applied_index)
        assert b"".join(copy.snapshot()) == b"".join(machine.snapshot())


def test_what_a_restored_copy_does_next_is_what_the_original_does() -> None:
    machine, copy = KvMachine(STORE), KvMachine(STORE)
    machine.mark(0)
    for index in range(1, 200):
        machine.apply(index, put(index))
    pieces = machine.delta(0)
    assert pieces is not None
    copy.restore_delta(pieces)
    for index in range(200, 260):
        assert machine.apply(index, put(index)) == copy.apply(index, put(index))
    assert machine.digest() == copy.digest()
    assert b"".join(machine.snapshot()) == b"".join(copy.snapshot())


def test_clients_that_were_forgotten_meanwhile_are_forgotten_in_the_copy() -> None:
    def ask(number: int) -> bytes:
        client = ClientId(b"c%d" % number)
        return encode_command(Put(Key(b"k"), b"v", client_id=client, sequence=1))

    machine, copy = KvMachine(STORE, LIMITS), KvMachine(STORE, LIMITS)
    for index in range(1, 6):
        machine.apply(index, ask(index))
    copy.restore(machine.snapshot())
    machine.mark(5)
    for index in range(6, 11):  # seven are remembered: the first three go
        machine.apply(index, ask(index))
    pieces = machine.delta(5)
    assert pieces is not None
    copy.restore_delta(pieces)
    assert b"".join(copy.snapshot()) == b"".join(machine.snapshot())


def test_a_delta_of_another_state_is_refused_and_changes_nothing() -> None:
    machine, other = KvMachine(STORE), KvMachine(STORE)
    machine.apply(1, put(1))
    machine.mark(1)
    machine.apply(2, put(2))
    pieces = list(machine.delta(1) or ())
    other.apply(1, put(1))
    other.apply(2, put(7))
    before = other.digest()
    with pytest.raises(SnapshotRefused, match="another state"):
        other.restore_delta(pieces)
    assert other.digest() == before


def test_every_flipped_bit_and_every_cut_of_a_delta_is_refused() -> None:
    machine = KvMachine(STORE)
    machine.mark(0)
    for index in range(1, 6):
        machine.apply(index, put(index))
    whole = b"".join(machine.delta(0) or ())
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        for damaged in (bytes(flipped), whole[:at]):
            with pytest.raises(SnapshotRefused):
                KvMachine(STORE).restore_delta([damaged])
    with pytest.raises(SnapshotRefused):
        KvMachine(STORE).restore_delta([whole, b"\0"])


def test_there_is_no_delta_once_the_history_is_forgotten() -> None:
    machine = KvMachine(STORE, KvLimits(events_max=8))
    machine.mark(0)
    for index in range(1, 30):
        machine.apply(index, put(index))
    assert machine.delta(0) is None
    assert machine.delta(12) is None
