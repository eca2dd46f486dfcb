"""Numbers at their bounds: whatever was taken can be read back, by this machine and the next."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import msgspec
import pytest

from clustor.control import (
    KINDS,
    Command,
    ControlMachine,
    ControlObject,
    OverrideScope,
    canonical,
    decode_object,
)
from clustor.control.draft import scan_records
from clustor.kv import Key, Put, StoreId, encode_command
from tests.clustor.control.drawn import drawn_command, reads_back
from tests.clustor.control.plane import ACTOR, OPERATOR, Plane, node_identity, settled_plane
from tests.clustor.control.samples import SAMPLES

BIG = 2**53 - 1
OBJECTS = {kind.PREFIX.encode(): kind for kind in ControlObject.__subclasses__()}


def check_readable(plane: Plane) -> None:
    """Every object decodes, encodes to the same bytes, and a restored machine agrees."""
    for record in scan_records(plane.machine.kv, b""):
        prefix = record.key[: record.key.index(b"/") + 1]
        if prefix == b"user/":
            continue
        held = decode_object(OBJECTS[prefix], record.value)
        assert canonical(held) == record.value
        assert held.key() == record.key
    twin = ControlMachine(StoreId(b"x"))
    twin.restore(plane.machine.snapshot())
    assert twin.digest() == plane.machine.digest()


def variants(command: Command) -> Iterator[Command]:
    """Give the command with each of its numbers, and with all of them, at the ends."""
    numbers = [
        field
        for field in command.__struct_fields__
        if isinstance(getattr(command, field), int)
        and not isinstance(getattr(command, field), bool)
    ]
    for value in (0, 1, BIG, 300_000, 604_800_000):
        for field in numbers:
            yield msgspec.structs.replace(command, **{field: value})
        yield msgspec.structs.replace(command, **dict.fromkeys(numbers, value))


@pytest.mark.parametrize("now_ms", [0, 1_000_000, 2**52, 2**52 + 1, BIG])
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_what_was_taken_can_be_read_back(name: str, now_ms: int) -> None:
    plane = settled_plane()
    for preparation in ("PublishBundle", "ArmBarrier", "IssueBreakGlass", "CommitFence"):
        plane.call(SAMPLES[preparation])
    plane.now_ms = now_ms
    for command in variants(SAMPLES[name]):
        for identity in (OPERATOR, node_identity(1)):
            plane.call(command, by=identity)
        plane.call(command, by=ACTOR, token="g1")
    check_readable(plane)


@pytest.mark.parametrize("seed", range(40))
def test_any_well_formed_call_is_answered_and_leaves_what_can_be_read(seed: int) -> None:
    """No command that its declaration allows stops a machine, whoever calls in whatever order."""
    rng = Random(seed)
    plane = settled_plane()
    for _ in range(150):
        plane.now_ms += rng.choice([0, 1, 1_000])
        command = drawn_command(rng, rng.choice(KINDS).command)
        assert reads_back(command)
        identity = rng.choice([OPERATOR, OPERATOR, node_identity(1), node_identity(2), ACTOR])
        plane.call(command, by=identity, token=rng.choice([None, "g1", "t1"]))
    check_readable(plane)


@pytest.mark.parametrize("load", [0, 1, BIG])
@pytest.mark.parametrize("capacity", [0, 1, BIG])
def test_utilization_stays_a_number_that_can_be_kept(load: int, capacity: int) -> None:
    plane = settled_plane()
    plane.add_nodes(4, capacity=capacity)
    plane.override("o", OverrideScope.SURVIVABILITY)
    for partition in (2, 3, 4):
        plane.done(plane.placing(partition, load=load, override_ref="o"))
    check_readable(plane)


def test_a_plain_command_from_the_end_of_time_stops_no_call() -> None:
    plane = settled_plane()
    plane.apply(encode_command(Put(Key(b"user/x"), b"1", 1, 2**53)))
    for name in sorted(SAMPLES):
        plane.call(SAMPLES[name])
    check_readable(plane)


def test_every_kind_of_object_has_a_prefix_of_its_own() -> None:
    prefixes = sorted(OBJECTS)
    assert len(prefixes) == len(ControlObject.__subclasses__())
    for one, next_one in pairwise(prefixes):
        assert not next_one.startswith(one)
    assert all(prefix.count(b"/") == 1 and prefix.endswith(b"/") for prefix in prefixes)
    assert {b"user/", b"slipstream/"} & set(prefixes) == set()
