"""The machine against the naive twin, through any sequence of commands and restarts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from clustor.kv import (
    Command,
    Events,
    EventsCompacted,
    KvMachine,
    KvRecord,
    NotYet,
    Revision,
    StoreId,
    decode_reply,
    encode_command,
    encode_reply,
)
from tests.clustor.kv.commands_drawn import commands
from tests.clustor.kv.twin import NaiveStore

STORE = StoreId(b"store-1")


class KvAgainstTwin(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = KvMachine(STORE)
        self.twin = NaiveStore()
        self.index = 0

    @rule(command=commands())
    def apply(self, command: Command) -> None:
        self.index += 1
        reply = self.machine.apply(self.index, encode_command(command))
        assert decode_reply(reply) == self.twin.reply(command)
        assert reply == encode_reply(decode_reply(reply))

    @rule(chunk_bytes=st.integers(1, 64))
    def restart_from_a_snapshot(self, chunk_bytes: int) -> None:
        whole = b"".join(self.machine.snapshot())
        successor = KvMachine(StoreId(b"another"))
        successor.restore(whole[at : at + chunk_bytes] for at in range(0, len(whole), chunk_bytes))
        assert b"".join(successor.snapshot()) == whole
        assert successor.digest() == self.machine.digest()
        self.machine = successor

    @rule(
        back=st.integers(-2, 20),
        prefix=st.sampled_from([b"", b"a", b"a/", b"b"]),
        limit=st.integers(1, 5),
    )
    def watch(self, back: int, prefix: bytes, limit: int) -> None:
        start = Revision(max(0, self.twin.revision - back))
        answer = self.machine.events_since(start, [prefix], limit=limit)
        if start > self.twin.revision:
            assert answer == NotYet(self.twin.revision)
        elif start < self.twin.compacted:
            assert answer == EventsCompacted(self.twin.compacted, self.twin.revision)
        else:
            assert self._watch_to_the_end(start, prefix, limit) == self.twin.events_after(
                start, prefix
            )

    def _watch_to_the_end(self, start: Revision, prefix: bytes, limit: int) -> list[KvRecord]:
        seen: list[KvRecord] = []
        more = True
        while more:
            answer = self.machine.events_since(start, [prefix], limit=limit)
            assert isinstance(answer, Events)
            assert answer.through > start or not answer.more
            assert all(start < event.mod_revision <= answer.through for event in answer.events)
            seen += answer.events
            start, more = answer.through, answer.more
        assert start == self.twin.revision
        return seen

    @invariant()
    def live_keys_agree(self) -> None:
        page = self.machine.range(b"", None, 100)
        assert page.records == [self.twin.records[key] for key in sorted(self.twin.records)]
        assert len(self.machine) == len(self.twin.records)
        assert self.machine.revision == self.twin.revision
        assert self.machine.compacted_revision == self.twin.compacted

    @invariant()
    def the_next_expiry_agrees(self) -> None:
        times = [each.expires_ms for each in self.twin.records.values() if each.expires_ms]
        assert self.machine.next_expiry_ms() == min(times, default=None)


KvAgainstTwin.TestCase.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)
TestKvAgainstTwin = KvAgainstTwin.TestCase


@settings(max_examples=300, deadline=None)
@given(st.lists(commands(), max_size=40), st.integers(0, 40))
def test_equal_logs_give_equal_stores_with_or_without_a_restart(
    log: list[Command], restart_at: int
) -> None:
    straight, restarted = KvMachine(STORE), KvMachine(STORE)
    for index, command in enumerate(log, start=1):
        if index == restart_at:
            chunks = list(restarted.snapshot())
            restarted = KvMachine(StoreId(b""))
            restarted.restore(chunks)
        encoded = encode_command(command)
        assert straight.apply(index, encoded) == restarted.apply(index, encoded)
        assert straight.digest() == restarted.digest()
    assert list(straight.snapshot()) == list(restarted.snapshot())


@settings(max_examples=300, deadline=None)
@given(st.lists(commands(), max_size=30), commands())
def test_the_digest_changes_exactly_with_the_snapshot(log: list[Command], last: Command) -> None:
    machine = KvMachine(STORE)
    for index, command in enumerate(log, start=1):
        machine.apply(index, encode_command(command))
    twin = KvMachine(STORE)
    twin.restore(machine.snapshot())
    machine.apply(100, encode_command(last))
    twin.apply(100, b"no command: moves the applied index alone")
    same_state = list(machine.snapshot()) == list(twin.snapshot())
    assert (machine.digest() == twin.digest()) == same_state
