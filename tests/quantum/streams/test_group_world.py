"""Groups with members that come, go, crash and dawdle: one owner at a time, and calm ends it.

Members follow the protocols as stock consumers do. The checker stands outside: it looks at what
members believe, and at which commits were taken.
"""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest

from quantum.broker.streams import (
    AssignedGroup,
    ClassicGroup,
    CommitOffsets,
    CommittedOffset,
    CompleteJoin,
    ConsumerHeartbeat,
    ExpireMember,
    GroupCoordinator,
    GroupSettings,
    HeartbeatAnswer,
    JoinCompleted,
    JoinedGeneration,
    JoinGroup,
    LeaveGroup,
    MemberWaits,
    NewMemberId,
    SetPartitionCounts,
    StreamRefusal,
    SyncCompleted,
    SyncedAssignment,
    SyncGroup,
    decode_group_command,
    encode_command,
)

PARTITIONS = 7
SETTINGS = GroupSettings(members_max=50, initial_delay_ms=5)


class Log:
    """The replicated log of one run: every command goes through bytes, and often a snapshot."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.now, self.drawn = rng, 0, 0
        self.coordinator = GroupCoordinator(SETTINGS)
        self.replica = GroupCoordinator(SETTINGS)

    def apply(self, command: Any) -> Any:
        command = decode_group_command(encode_command(command))
        result = self.coordinator.apply(command)
        assert self.replica.apply(command) == result
        if self.rng.random() < 0.1:
            assert self.replica.digest() == self.coordinator.digest()
            fresh = GroupCoordinator(SETTINGS)
            fresh.restore(self.coordinator.snapshot())
            self.coordinator, self.replica = fresh, self.coordinator
        return result

    def members(self) -> AssignedGroup:
        group = self.coordinator.get("g")
        assert group is not None
        assert isinstance(group.members, AssignedGroup)
        return group.members

    def fresh_id(self) -> str:
        self.drawn += 1
        return f"m{self.drawn}"


class ClassicClient:
    """A consumer: joins, assigns where it leads, owns what it was told until it must join again."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.member_id, self.generation = "", -1
        self.phase = "out"
        self.owned: frozenset[int] = frozenset()
        self.crashed = False

    def step(self) -> tuple[Any, ...]:
        if self.phase == "out":
            return self._join()
        if self.phase == "syncing":
            return self._sync(())
        if self.phase == "owns":
            refusal = self.log.coordinator.check_heartbeat(
                "g", self.member_id, None, self.generation
            )
            if refusal is not None:
                self._lose(forget=refusal is StreamRefusal.UNKNOWN_MEMBER)
        return ()

    def _lose(self, *, forget: bool) -> None:
        self.owned, self.phase = frozenset(), "out"
        if forget:
            self.member_id = ""

    def _join(self) -> tuple[Any, ...]:
        command = JoinGroup(
            *(self.log.now, "g", self.member_id, self.log.fresh_id(), 30, 20, "consumer"),
            (("range", b"x"),),
        )
        result = self.log.apply(command)
        match result.answer:
            case NewMemberId(member_id):
                self.member_id = member_id
            case MemberWaits(member_id):
                self.member_id, self.phase = member_id, "joining"
            case JoinedGeneration() as joined:
                self.on_joined(joined)
            case StreamRefusal.UNKNOWN_MEMBER:
                self.member_id = ""
        return tuple(result.events)

    def on_joined(self, joined: JoinedGeneration) -> None:
        self.member_id, self.generation = joined.member_id, joined.generation
        self.phase = "syncing"
        self.members = [each[0] for each in joined.members]

    def _sync(self, _: tuple[()]) -> tuple[Any, ...]:
        rows = tuple(
            (member, bytes(range(nth, PARTITIONS, len(self.members))))
            for nth, member in enumerate(self.members)
        )
        result = self.log.apply(SyncGroup(self.log.now, "g", self.generation, self.member_id, rows))
        self.on_synced(result.answer)
        return tuple(result.events)

    def on_synced(self, answer: Any) -> None:
        if isinstance(answer, SyncedAssignment):
            self.owned, self.phase = frozenset(answer.assignment), "owns"
        elif isinstance(answer, StreamRefusal):
            self._lose(forget=answer is StreamRefusal.UNKNOWN_MEMBER)


class ClassicWorld:
    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.log = Log(self.rng)
        self.clients: list[ClassicClient] = []
        self.offset = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.log.now += self.rng.choice([0, 1, 2])
            match self.rng.randrange(20):
                case 0 if len(self.clients) < 6:
                    self.clients.append(ClassicClient(self.log))
                case 1 if self.clients:
                    self._leave(self.rng.choice(self.clients))
                case 2 if self.clients:
                    self.rng.choice(self.clients).crashed = True
                case 3 if self.clients:
                    self._commit(self.rng.choice(self.clients))
                case _:
                    self._step()

    def _step(self) -> None:
        living = [each for each in self.clients if not each.crashed]
        if living:
            self.tell(self.rng.choice(living).step())
        self._deadlines()
        for each in [each for each in self.clients if each.crashed]:
            self._expire(each)

    def _expire(self, client: ClassicClient) -> None:
        if self.rng.random() < 0.2:
            self.clients.remove(client)
            group = self.group()
            joins = 0
            if group is not None and client.member_id in group.members:
                joins = group.members[client.member_id].joins
            command = ExpireMember(self.log.now, "g", client.member_id, joins)
            self.tell(self.log.apply(command).events)

    def group(self) -> ClassicGroup | None:
        found = self.log.coordinator.get("g")
        members = None if found is None else found.members
        assert members is None or isinstance(members, ClassicGroup)
        return members

    def _deadlines(self) -> None:
        group = self.group()
        due = None if group is None else group.deadline_ms()
        if group is not None and due is not None and self.log.now >= due:
            done = self.log.apply(CompleteJoin(self.log.now, "g", group.generation))
            self.tell(done.events)

    def _leave(self, client: ClassicClient) -> None:
        self.clients.remove(client)
        if client.member_id:
            leave = LeaveGroup(self.log.now, "g", ((client.member_id, None),))
            self.tell(self.log.apply(leave).events)

    def _commit(self, client: ClassicClient) -> None:
        """Only who is of this generation commits: that is the fence against two owners."""
        if client.phase != "owns" or not client.owned:
            return
        self.offset += 1
        rows = tuple((("t", each), CommittedOffset(self.offset)) for each in client.owned)
        facts = (client.generation, client.member_id, rows)
        answer = self.log.apply(CommitOffsets(self.log.now, "g", *facts)).answer
        group = self.group()
        assert group is not None
        current = client.generation == group.generation
        assert isinstance(answer, tuple) == (current and client.member_id in group.members), (
            self.seed
        )

    def tell(self, events: tuple[Any, ...]) -> None:
        """What the log's leader does with events: answer whoever waits."""
        for event in events:
            group = self.group()
            assert group is not None
            for client in list(self.clients):
                if isinstance(event, JoinCompleted) and client.phase == "joining":
                    if client.member_id in group.members:
                        client.on_joined(group.joined(client.member_id))
                    else:
                        client.on_synced(StreamRefusal.UNKNOWN_MEMBER)
                elif (
                    isinstance(event, SyncCompleted)
                    and client.phase == "syncing"
                    and client.member_id in group.members
                ):
                    assignment = group.members[client.member_id].assignment
                    client.on_synced(SyncedAssignment(assignment))

    def check(self) -> None:
        """Within a generation no partition has two owners."""
        owners: dict[tuple[int, int], str] = {}
        for client in self.clients:
            for each in client.owned if client.phase == "owns" else ():
                key = (client.generation, each)
                assert owners.setdefault(key, client.member_id) == client.member_id, self.seed

    def calm(self) -> None:
        self.clients = [each for each in self.clients if not each.crashed] or [
            ClassicClient(self.log)
        ]
        for _ in range(400):
            self.log.now += 1
            self._sweep()
            self._step()
            self.check()
        assert {each.phase for each in self.clients} == {"owns"}, self.seed
        assert len({each.generation for each in self.clients}) == 1, self.seed
        owned = sorted(part for each in self.clients for part in each.owned)
        assert owned == list(range(PARTITIONS)), self.seed

    def _sweep(self) -> None:
        """The leader of the log hears nothing of members that are no more."""
        group = self.group()
        here = {each.member_id for each in self.clients}
        if group is None:
            return
        for each in [*group.members, *group.pending]:
            if each not in here:
                joins = group.members[each].joins if each in group.members else 0
                self.tell(self.log.apply(ExpireMember(self.log.now, "g", each, joins)).events)


@pytest.mark.parametrize("seed", range(60))
def test_classic_groups_have_one_owner_and_come_to_rest(seed: int) -> None:
    world = ClassicWorld(seed)
    for _ in range(15):
        world.run(20)
        world.check()
    world.calm()


class ConsumerClient:
    """A consumer of KIP-848: gives up what it is told to, some time later, and says so."""

    def __init__(self, log: Log, member_id: str, topics: tuple[str, ...]) -> None:
        self.log, self.member_id, self.topics = log, member_id, topics
        self.epoch = 0
        self.owned: set[tuple[str, int]] = set()
        self.told: set[tuple[str, int]] = set()

    def beat(self, *, heard: bool = True) -> None:
        if self.log.rng.random() < 0.6:
            self.owned &= self.told  # gives up; what is new is taken below
        joining = self.epoch == 0
        owned = tuple(sorted(self.owned))
        command = ConsumerHeartbeat(
            *(self.log.now, "g", self.member_id, self.epoch),
            topics=self.topics if joining or self.log.rng.random() < 0.2 else None,
            owned=() if joining else owned,
        )
        if self.log.coordinator.would_change(command):
            answer = self.log.apply(command).answer
        else:
            answer = self._unlogged(command)
        if isinstance(answer, StreamRefusal):
            self.epoch, self.owned, self.told = 0, set(), set()
        elif heard:
            assert isinstance(answer, HeartbeatAnswer)
            self.epoch = answer.epoch
            if answer.assignment is not None:
                self.told = set(answer.assignment)
            if self.owned <= self.told:
                self.owned = set(self.told)

    def _unlogged(self, command: ConsumerHeartbeat) -> HeartbeatAnswer:
        """What is answered without the log is what the log would have said, and changes nothing."""
        group = self.log.members()
        answer = group.answer(command)
        before = deepcopy(group)
        assert self.log.apply(command).answer == answer
        assert self.log.members() == before, "it was said to bring nothing"
        return answer


@pytest.mark.parametrize("seed", range(60))
def test_consumer_groups_have_one_owner_always_and_come_to_rest(seed: int) -> None:
    rng = random.Random(seed)
    log = Log(rng)
    counts = {"t": rng.randint(1, 6), "u": rng.randint(1, 6)}
    log.apply(SetPartitionCounts(0, tuple(counts.items())))
    clients: list[ConsumerClient] = []

    def check() -> None:
        held = [part for each in clients for part in each.owned]
        assert len(held) == len(set(held)), (seed, sorted(held))

    def step() -> None:
        log.now += 1
        match rng.randrange(16):
            case 0 if len(clients) < 5:
                topics = rng.choice([("t",), ("t", "u"), ("u",)])
                clients.append(ConsumerClient(log, log.fresh_id(), topics))
            case 1 if clients:
                gone = clients.pop(rng.randrange(len(clients)))
                log.apply(ConsumerHeartbeat(log.now, "g", gone.member_id, -1))
            case 2:
                topic = rng.choice("tu")
                counts[topic] += 1
                log.apply(SetPartitionCounts(log.now, ((topic, counts[topic]),)))
            case 3 if clients:
                rng.choice(clients).topics = rng.choice([("t",), ("t", "u")])
            case 4 if clients and log.coordinator.get("g") is not None:
                gone = clients.pop(rng.randrange(len(clients)))
                gone.owned.clear()
                if gone.member_id in log.members().members:
                    joins = log.members().members[gone.member_id].joins
                    log.apply(ExpireMember(log.now, "g", gone.member_id, joins - 1))
                    assert gone.member_id in log.members().members, "that was seen too long ago"
                    log.apply(ExpireMember(log.now, "g", gone.member_id, joins))
            case _ if clients:
                rng.choice(clients).beat(heard=rng.random() < 0.9)

    for _ in range(200):
        step()
        check()
    if not clients:
        clients.append(ConsumerClient(log, log.fresh_id(), ("t",)))
    for _ in range(60 * len(clients)):
        rng.choice(clients).beat()
        check()
    wanted = {(t, n) for each in clients for t in each.topics for n in range(counts[t])}
    said = {t for each in clients for t in each.topics}
    assert said
    owned = {part for each in clients for part in each.owned}
    assert owned == wanted, seed
    group = log.members()
    assert {each.epoch for each in group.members.values()} == {group.epoch}
