"""What must hold whatever happens, judged from outside: from disks, answers and applied entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clustor.log.types import Entry, EntryKind, LogIndex
from clustor.raft.leadership import ProposalAccepted
from clustor.raft.membership import Membership
from clustor.raft.messages import AppendEntries, VoteResponse
from clustor.raft.output import Output
from clustor.raft.reads import ReadGranted
from clustor.raft.types import ReadId, ReplicaId, Role

if TYPE_CHECKING:
    from tests.clustor.raft.nodes import Node
    from tests.clustor.raft.world import World


class Broken(AssertionError):
    """A promise of Raft or of the ACK contract did not hold."""


class Checker:
    """Judge of one run. It raises `Broken` at the moment a promise is broken."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._leader_of_term: dict[int, ReplicaId] = {}
        self.applied: list[Entry] = []  # what the group as a whole has applied, by index - 1
        self._proposed: dict[tuple[int, int], bytes] = {}  # (term, index) → payload
        self.acked: dict[int, tuple[int, bytes]] = {}  # index → (term, payload)
        self.acked_through = 0
        self._read_floor: dict[ReadId, int] = {}
        self.reads_granted = 0
        self._votes: dict[tuple[ReplicaId, int], ReplicaId] = {}
        self._configurations: dict[ReplicaId, list[Membership]] = {}
        self._commit: dict[ReplicaId, tuple[int, int]] = {}

    # One leader per term; a leader holds everything that was acknowledged.

    def on_output(self, node: Node, output: Output) -> None:
        if output.role is not None and output.role.role is Role.LEADER:
            self._on_leader(node, output.role.term)
        if output.acked is not None:
            self._on_acked(node, output.acked.term, output.acked.through)
        self._see_configuration(node)
        for answer in output.reads:
            if isinstance(answer, ReadGranted):
                self._on_granted(answer)
        self._check_votes(node, output)
        self._check_observers(node, output)
        self._check_fences(output)
        self._check_monotone(node)

    def _see_configuration(self, node: Node) -> None:
        assert node.group is not None
        seen = self._configurations.setdefault(node.id, [])
        if not seen or seen[-1] != node.group.core.config:
            seen.append(node.group.core.config)

    def _on_leader(self, node: Node, term: int) -> None:
        other = self._leader_of_term.setdefault(term, node.id)
        if other != node.id:
            raise Broken(f"two leaders in term {term}: {other} and {node.id}")
        assert node.group is not None
        log = node.group.core.log
        for index, (entry_term, _) in self.acked.items():
            # A paused winner of an old term may wake up late: it owes nothing to later terms.
            owed = entry_term < term and index > log.base_index
            if owed and log.term_at(index) != entry_term:
                raise Broken(f"leader {node.id} of term {term} lacks acknowledged entry {index}")

    def _check_votes(self, node: Node, output: Output) -> None:
        """No vote leaves that the disk does not hold, and none is given twice in a term."""
        for to, message in output.messages:
            if isinstance(message, VoteResponse) and message.vote_granted:
                hard = node.disk.hard
                if hard is None or (hard.term == message.term and hard.voted_for != to):
                    raise Broken(f"{node.id} answered a vote of term {message.term} unsaved")
                if hard.term < message.term:
                    raise Broken(f"{node.id} answered in a term that it has not saved")
                first = self._votes.setdefault((node.id, message.term), to)
                if first != to and not node.wiped:
                    raise Broken(f"{node.id} voted twice in term {message.term}")

    def _check_observers(self, node: Node, output: Output) -> None:
        """What an observer is sent has been acknowledged: committed, and durable on a quorum."""
        assert node.group is not None
        observers = node.group.core.config.observers
        for to, message in output.messages:
            if to in observers and isinstance(message, AppendEntries) and message.entries:
                last = message.entries[-1].index
                if last > self.acked_through:
                    raise Broken(f"observer {to} was sent {last} before it was acknowledged")

    def _check_fences(self, output: Output) -> None:
        for batch in output.appends:
            kinds = [entry.kind for entry in batch.entries]
            if EntryKind.DURABILITY_TRANSITION in kinds and len(kinds) > 1:
                raise Broken("a batch spans a durability fence")

    def _check_monotone(self, node: Node) -> None:
        assert node.group is not None
        commit = node.group.core.commit_index
        life, before = self._commit.get(node.id, (node.life, 0))
        if life == node.life and commit < before:
            raise Broken(f"the commit index of {node.id} went back from {before} to {commit}")
        self._commit[node.id] = (node.life, commit)

    # State machine safety.

    def on_apply(self, node: Node, entries: list[Entry]) -> None:
        first = entries[0].index
        if first != len(node.applied) - len(entries) + 1:
            raise Broken(f"{node.id} applied {first} out of order")
        for entry in entries:
            known = self.applied[entry.index - 1 : entry.index]
            if not known:
                self.applied.append(entry)
            elif (known[0].term, known[0].payload) != (entry.term, entry.payload):
                raise Broken(f"{node.id} applied another entry at {entry.index}")
            acked = self.acked.get(entry.index)
            if acked is not None and acked != (entry.term, entry.payload):
                raise Broken(f"acknowledged entry {entry.index} was replaced")

    def on_repair(self, node: Node, entry: Entry) -> None:
        at = entry.index - node.disk.base_index - 1
        if at < 0:
            return  # compacted in the meantime
        true = node.disk.entries[at]
        if (true.term, true.payload) != (entry.term, entry.payload):
            raise Broken(f"{node.id} repaired {entry.index} with another entry")

    # The ACK contract.

    def on_accepted(self, node: Node, accepted: ProposalAccepted, payloads: list[bytes]) -> None:
        for at, payload in enumerate(payloads):
            self._proposed[accepted.term, accepted.first_index + at] = payload

    def _on_acked(self, node: Node, term: int, through: LogIndex) -> None:
        assert node.group is not None
        self._check_durable(node, node.group.core.config, through)
        for index in range(self.acked_through + 1, through + 1):
            payload = self._proposed.get((term, index))
            if payload is not None:
                self.acked[index] = (term, payload)
        self.acked_through = max(self.acked_through, through)

    def _check_durable(self, node: Node, config: Membership, index: LogIndex) -> None:
        assert node.group is not None
        log = node.group.core.log
        term = log.term_at(index)
        if term != node.group.core.hard.term:
            raise Broken(f"acknowledged {index} of term {term} in another term")
        if not node.disk.holds(term, index):
            raise Broken(f"acknowledged {index} before the leader's own disk held it")
        # An ack may wait for the hard state that a change of members brought with it: then it
        # was earned under the configuration before.
        earlier = self._configurations.get(node.id, [])[-3:]
        if not any(self._quorum_holds(config, term, index) for config in (config, *earlier)):
            raise Broken(f"acknowledged {index} without a quorum of {config} on disk")

    def _quorum_holds(self, config: Membership, term: int, index: int) -> bool:
        return all(
            sum(self._counts(voter, term, index) for voter in voters) > len(voters) // 2
            for voters in (config.voters, config.outgoing)
            if voters
        )

    def _counts(self, voter: ReplicaId, term: int, index: int) -> bool:
        node = self._world.nodes[voter]
        return node.wiped or node.disk.holds(term, index)

    # Reads.

    def on_read(self, read_id: ReadId) -> None:
        self._read_floor[read_id] = self.acked_through

    def _on_granted(self, answer: ReadGranted) -> None:
        self.reads_granted += 1
        floor = self._read_floor.get(answer.read_id, 0)
        if answer.index < floor:
            raise Broken(f"read {answer.read_id} at {answer.index} misses an ack at {floor}")

    # At the end of a run.

    def check_all(self) -> None:
        """Check what a whole run must leave behind: log matching, and every ack applied."""
        self._check_log_matching()
        for index, (term, payload) in self.acked.items():
            if index > len(self.applied):
                continue
            entry = self.applied[index - 1]
            if (entry.term, entry.payload) != (term, payload):
                raise Broken(f"acknowledged entry {index} was lost")

    def check_nothing_lost(self) -> None:
        """After healing: everything acknowledged has been applied."""
        missing = [index for index in self.acked if index > len(self.applied)]
        if missing:
            raise Broken(f"acknowledged entries never applied: {missing[:5]}")

    def _check_log_matching(self) -> None:
        seen: dict[tuple[int, int], tuple[int, bytes, ReplicaId]] = {}
        for node in self._world.nodes.values():
            before = node.disk.base_term
            for entry in node.disk.entries:
                facts = (before, entry.payload, node.id)
                first = seen.setdefault((entry.term, entry.index), facts)
                if first[:2] != facts[:2]:
                    raise Broken(
                        f"logs of {first[2]} and {node.id} differ at {entry.term}/{entry.index}"
                    )
                before = entry.term
