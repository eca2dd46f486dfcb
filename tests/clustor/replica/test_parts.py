"""The parts of a replica by themselves: batches, documents, headers, the queue of the disk."""

from __future__ import annotations

import pytest

from clustor.log.types import (
    DurabilityMode,
    DurabilityModeEpoch,
    LogId,
    LogIndex,
    PartitionId,
    Term,
)
from clustor.raft.hard_state import HardState, MembershipAck
from clustor.raft.membership import Membership
from clustor.raft.types import ReplicaId, ReplicaIdentity, RoutingEpoch
from clustor.replica import (
    HARD_STATE_FILE,
    DiskToken,
    ReplicaDamaged,
    ReplicaMisuse,
    decode_batch,
    encode_batch,
    read_hard_state,
    read_identity,
)
from clustor.replica.batch import commands_that_fit
from clustor.replica.disk_queue import DiskQueue
from clustor.replica.documents import plan_hard_state, plan_identity
from clustor.replica.header import adopt, encode_header, header_of, split_header
from clustor.sim.disk import SimDisk
from clustor.snapshot.errors import CorruptSnapshot

MEMBERS = Membership(
    voters=frozenset({ReplicaId(1), ReplicaId(2**63)}),
    outgoing=frozenset({ReplicaId(1), ReplicaId(3)}),
    learners_next=frozenset({ReplicaId(3)}),
    observers=frozenset({ReplicaId(9)}),
    auto_leave=True,
)
HARD = HardState(
    term=Term(2**60),
    voted_for=ReplicaId(2**63),
    membership=MEMBERS,
    membership_index=LogIndex(77),
    durable_commit_index=LogIndex(78),
    routing_epoch=RoutingEpoch(5),
    membership_ack=MembershipAck(RoutingEpoch(5), b"d" * 32, DurabilityModeEpoch(2)),
    durability_mode=DurabilityMode.GROUP_FSYNC,
    durability_mode_epoch=DurabilityModeEpoch(2),
    rejoin_epoch=RoutingEpoch(4),
)


@pytest.mark.parametrize(
    ("commands", "payload"),
    [
        ([], "00000000"),
        ([b""], "01000000 00000000"),
        ([b"ab", b"", b"c"], "03000000 02000000 00000000 01000000 616263"),
    ],
)
def test_a_batch_and_its_bytes_agree(commands: list[bytes], payload: str) -> None:
    assert encode_batch(commands) == bytes.fromhex(payload)
    assert decode_batch(bytes.fromhex(payload)) == commands


@pytest.mark.parametrize(
    "payload", ["", "000000", "02000000 00000000", "01000000 02000000 61", "00000000 61"]
)
def test_what_is_no_batch_is_refused(payload: str) -> None:
    with pytest.raises(ValueError, match="batch"):
        decode_batch(bytes.fromhex(payload))


def test_commands_are_cut_where_a_payload_is_full() -> None:
    commands = [b"x" * 10] * 5
    assert commands_that_fit(commands, 4 + 3 * 14) == 3
    assert commands_that_fit(commands, 4 + 3 * 14 - 1) == 2
    assert commands_that_fit(commands, 1) == 1
    assert commands_that_fit(commands, 1_000) == 5


@pytest.mark.parametrize("hard", [HARD, HardState()], ids=["everything", "nothing"])
def test_the_hard_state_comes_back_as_it_was(hard: HardState) -> None:
    disk = SimDisk()
    assert read_hard_state(disk) is None
    disk.execute(plan_hard_state(hard))
    assert read_hard_state(disk) == hard


def test_no_flipped_bit_of_the_hard_state_is_believed() -> None:
    disk = SimDisk()
    disk.execute(plan_hard_state(HARD))
    for offset in range(disk.size(HARD_STATE_FILE) - 1):
        for bit in range(8):
            twin = disk.copy()
            twin.flip_bit(HARD_STATE_FILE, offset, bit)
            with pytest.raises(ReplicaDamaged):
                read_hard_state(twin)


def test_the_identity_comes_back_as_it_was() -> None:
    identity = ReplicaIdentity(
        ReplicaId(2**64 - 1), PartitionId(7), LogId(bytes(range(16))), holds_data=True
    )
    disk = SimDisk()
    assert read_identity(disk) is None
    disk.execute(plan_identity(identity))
    assert read_identity(disk) == identity


@pytest.mark.parametrize("piece_bytes", [1, 3, 64, 4096])
def test_a_header_is_taken_off_however_the_content_is_cut(piece_bytes: int) -> None:
    header = header_of(HARD, LogIndex(50))
    assert header.membership_index == 50, "never above the base"
    whole = encode_header(header) + b"the machine's own bytes"
    pieces = [whole[at : at + piece_bytes] for at in range(0, len(whole), piece_bytes)]
    found, content = split_header(pieces)
    assert found == header
    assert b"".join(content) == b"the machine's own bytes"


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"\x00\x00\x00\x00", b"\x05\x00\x00\x00{}", b"\xff" * 9]
)
def test_what_has_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptSnapshot):
        split_header([data])


def test_newer_members_of_a_snapshot_are_adopted_and_older_ones_are_not() -> None:
    header = header_of(HARD, LogIndex(80))
    behind = HardState(term=Term(3), membership_index=LogIndex(5))
    assert adopt(header, behind).membership == MEMBERS
    ahead = HardState(
        membership=Membership(voters=frozenset({ReplicaId(4)})), membership_index=LogIndex(79)
    )
    assert adopt(header, ahead).membership == ahead.membership


def test_plans_are_finished_in_order_and_an_empty_one_waits_for_those_before_it() -> None:
    queue = DiskQueue()
    done: list[str] = []
    disk = SimDisk()
    plan = plan_hard_state(HARD)
    queue.submit((), lambda: done.append("nothing before it"))
    queue.submit(plan, lambda: done.append("first"))
    queue.submit((), lambda: done.append("empty"))
    queue.submit(plan, lambda: done.append("second"))
    works = queue.take()
    assert [work.token for work in works] == [1, 2]
    with pytest.raises(ReplicaMisuse):
        queue.finish(DiskToken(2))
    disk.execute(works[0].plan)
    queue.finish(DiskToken(1))
    assert done == ["nothing before it", "first", "empty"]
    queue.finish(DiskToken(2))
    assert done[-1] == "second"
