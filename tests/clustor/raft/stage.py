"""A stage for scenarios: a few groups, and someone who decides when disks and messages move.

Nothing happens by itself. A command gives one input; its lines say what came out. `run` lets
everything move until it is quiet.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from clustor.log.types import (
    DurabilityMode,
    DurabilityModeEpoch,
    Entry,
    IoWriterMode,
    LogId,
    LogIndex,
    PartitionId,
    SegmentSeq,
    Term,
)
from clustor.raft.control_plane import ControlPlaneUpdate, VerifiedProof
from clustor.raft.errors import RaftError
from clustor.raft.group import Group
from clustor.raft.hard_state import HardState, MembershipAck
from clustor.raft.leadership import ProposalRefused
from clustor.raft.membership import Change, ChangeKind, Membership, membership_digest
from clustor.raft.memory_log import MemoryLog
from clustor.raft.messages import Message
from clustor.raft.output import (
    LogAppend,
    NoteKind,
    Output,
    PersistHardState,
    RepairWrite,
    SnapshotInstall,
)
from clustor.raft.profiles import CONSISTENCY_PROFILE, THROUGHPUT, WAN, MembershipNumbers
from clustor.raft.reads import FailedClause, ReadGranted, ReadKind, ReadRequest
from clustor.raft.reconfiguration import MembershipRequest, Preflight
from clustor.raft.transition import Transition
from clustor.raft.types import (
    DurabilityTuple,
    HardStateStored,
    LogStored,
    ReadId,
    ReplicaId,
    ReplicaIdentity,
    RoutingEpoch,
)
from tests.clustor.raft.script import describe, describe_entries, read_message

PROFILES = {"wan": WAN, "throughput": THROUGHPUT, "consistency": CONSISTENCY_PROFILE}
QUIET_NOTES = {NoteKind.STRICT_FALLBACK, NoteKind.MEMBERSHIP_PHASE}


class Actor:
    """One replica on the stage, with a disk that does its work when told."""

    def __init__(self, replica_id: ReplicaId, finalize_window: int = 2) -> None:
        self.id = replica_id
        self.group: Group | None = None
        self.hard: HardState | None = None
        self.entries: list[Entry] = []
        self.base: tuple[LogIndex, Term] = (LogIndex(0), Term(0))
        self.work: deque[PersistHardState | LogAppend | RepairWrite | SnapshotInstall] = deque()
        self.disk_held = False
        self.profile = replace(
            CONSISTENCY_PROFILE,
            membership=MembershipNumbers(finalize_window=finalize_window, catchup_timeout_ms=1_000),
        )
        self.bootstrap: Membership | None = None
        self.holds_data = False

    def start(self, now_ms: int, rejoin_epoch: RoutingEpoch | None = None) -> None:
        log = MemoryLog(*self.base)
        log.append(list(self.entries))
        identity = ReplicaIdentity(
            self.id, PartitionId(1), LogId(b"x" * 16), holds_data=self.holds_data
        )
        self.group = Group.start(
            identity,
            self.profile,
            lambda low, high: low,
            now_ms=now_ms,
            hard_state=self.hard,
            log=log,
            applied_index=self.base[0],
            bootstrap=self.bootstrap,
            rejoin_epoch=rejoin_epoch,
        )

    def do_work(self) -> bool:
        """Do the next piece of disk work and hand in its receipt."""
        if self.group is None or not self.work:
            return False
        work = self.work.popleft()
        match work:
            case PersistHardState():
                self.hard, self.holds_data = work.state, True
                self.group.stored(HardStateStored(work.seq))
            case LogAppend():
                self._append(work)
            case RepairWrite():
                self.group.log_repaired(work.entries[-1].index)
            case SnapshotInstall():
                self.base = (work.base_index, work.base_term)
                kept = [e for e in self.entries if e.index > work.base_index]
                self.entries = kept if work.keeps_suffix else []
                self.group.snapshot_installed(work, ok=True)
        return True

    def _append(self, batch: LogAppend) -> None:
        assert self.group is not None
        if batch.truncate_from is not None:
            del self.entries[batch.truncate_from - self.base[0] - 1 :]
        self.entries += batch.entries
        term = self.entries[-1].term if self.entries else self.base[1]
        last = LogIndex(self.base[0] + len(self.entries))
        self.group.stored(
            LogStored(batch.write_seq, term, last, SegmentSeq(1), IoWriterMode.FIXED_URING)
        )


class Stage:
    """The script's commands, each a method named `on_<command>`; `lines` gathers the outcome."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.actors: dict[ReplicaId, Actor] = {}
        self.current = ReplicaId(0)
        self.flight: deque[tuple[ReplicaId, ReplicaId, Message]] = deque()
        self.cut: list[set[ReplicaId]] = []
        self.lines: list[str] = []
        self.loud = True
        self.proof: DurabilityTuple | None = None
        self.epoch = RoutingEpoch(0)

    def do(self, line: str) -> None:
        """Do one line; with `+` before it, its outcome is taken together with the next line's."""
        words = line.removeprefix("+").split()
        if words[0].endswith(":"):
            self.current = ReplicaId(int(words.pop(0)[:-1]))
        facts = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        plain = [word for word in words[1:] if "=" not in word]
        try:
            getattr(self, f"on_{words[0].replace('-', '_')}")(plain, facts)
        except RaftError as error:
            self.say(f"{type(error).__name__}: {error}")
        if not line.startswith("+"):
            for actor in self.actors.values():
                self._take(actor)

    def say(self, text: str) -> None:
        many = len(self.actors) > 1
        self.lines.append(f"{self.current}: {text}" if many else text)

    @property
    def actor(self) -> Actor:
        return self.actors[self.current]

    @property
    def group(self) -> Group:
        group = self.actor.group
        assert group is not None, f"{self.current} is down"
        return group

    # Who is on the stage.

    def on_node(self, plain: list[str], facts: dict[str, str]) -> None:
        """node 1 voters=1,2,3 term=2 voted=1 log=1,1,2 commit=2 epoch=1 profile=wan"""
        self.current = ReplicaId(int(plain[0]))
        actor = self.actors[self.current] = Actor(self.current)
        if "profile" in facts:
            actor.profile = PROFILES[facts["profile"]]
        config = Membership(
            voters=_ids(facts.get("voters", "")),
            outgoing=_ids(facts.get("outgoing", "")),
            learners=_ids(facts.get("learners", "")),
            observers=_ids(facts.get("observers", "")),
        )
        terms = [int(term) for term in facts.get("log", "").split(",") if term]
        actor.entries = [
            Entry(Term(term), LogIndex(at), b"%d" % at) for at, term in enumerate(terms, 1)
        ]
        actor.bootstrap = config
        if "term" in facts:
            voted = facts.get("voted", "-")
            epoch = DurabilityModeEpoch(int(facts.get("epoch", 0)))
            actor.hard = HardState(
                term=Term(int(facts["term"])),
                voted_for=None if voted == "-" else ReplicaId(int(voted)),
                membership=config,
                membership_ack=MembershipAck(RoutingEpoch(0), membership_digest(config), epoch),
                durability_mode_epoch=epoch,
            )
        actor.holds_data = "data" in plain
        rejoin = RoutingEpoch(int(facts["rejoin"])) if "rejoin" in facts else None
        actor.start(self.now_ms, rejoin)
        self._take(actor)

    def on_cluster(self, plain: list[str], facts: dict[str, str]) -> None:
        """cluster 1,2,3 [spare=4] [window=2]: a fresh group; disks and messages move with `run`"""
        self.loud = False
        voters = _ids(plain[0])
        for member in sorted(voters | _ids(facts.get("spare", ""))):
            actor = self.actors[member] = Actor(member, int(facts.get("window", 2)))
            actor.bootstrap = Membership(voters=voters) if member in voters else None
            actor.start(self.now_ms)

    # Time, disks, network.

    def on_tick(self, plain: list[str], facts: dict[str, str]) -> None:
        """tick 150: let time pass for everyone, or for `only=` one"""
        self.now_ms += int(plain[0])
        for actor in self.actors.values():
            if actor.group is not None and str(actor.id) in facts.get("only", str(actor.id)):
                actor.group.tick(self.now_ms)

    def on_stored(self, plain: list[str], facts: dict[str, str]) -> None:
        """stored [1]: let the disk do that many pieces of work, all without a number"""
        count = int(plain[0]) if plain else len(self.actor.work)
        for _ in range(count):
            self.actor.do_work()
            self._take(self.actor)

    def on_hold(self, plain: list[str], facts: dict[str, str]) -> None:
        """hold: this disk does nothing until `release`"""
        self.actor.disk_held = True

    def on_release(self, plain: list[str], facts: dict[str, str]) -> None:
        self.actor.disk_held = False

    def on_crash(self, plain: list[str], facts: dict[str, str]) -> None:
        """crash: what the disk had not done is gone"""
        self.actor.group = None
        self.actor.work.clear()

    def on_wipe(self, plain: list[str], facts: dict[str, str]) -> None:
        """wipe: the disk of a crashed node is gone, too"""
        self.actor.hard, self.actor.entries = None, []
        self.actor.base = (LogIndex(0), Term(0))

    def on_restart(self, plain: list[str], facts: dict[str, str]) -> None:
        rejoin = RoutingEpoch(int(facts["rejoin"])) if "rejoin" in facts else None
        self.actor.start(self.now_ms, rejoin)

    def on_cut(self, plain: list[str], facts: dict[str, str]) -> None:
        """cut 1 2,3: only who stands in one group can talk; `heal` ends it"""
        self.cut = [set(_ids(side)) for side in plain]

    def on_heal(self, plain: list[str], facts: dict[str, str]) -> None:
        self.cut = []

    def on_run(self, plain: list[str], facts: dict[str, str]) -> None:
        """run [300]: let disks and messages move until it is quiet, for that long"""
        end = self.now_ms + int(plain[0]) if plain else self.now_ms
        while True:
            self._quiesce()
            if self.now_ms >= end:
                return
            self.on_tick(["10"], {})

    def on_elect(self, plain: list[str], facts: dict[str, str]) -> None:
        """elect 1 [alone]: let time pass for this one until it leads; alone: nobody hears of it"""
        target = self.actors[ReplicaId(int(plain[0]))]
        for _ in range(100):
            self.now_ms += 10
            assert target.group is not None
            for actor in self.actors.values():
                if actor.group is not None and actor is not target:
                    actor.group.core.now_ms = self.now_ms  # time passes, timers do not fire
            target.group.tick(self.now_ms)
            self._quiesce(stop=target if "alone" in plain else None)
            if target.group.core.leads:
                return
        self.say("nobody was elected")

    def _quiesce(self, stop: Actor | None = None) -> None:
        for _ in range(2_000):
            if stop is not None and stop.group is not None and stop.group.core.leads:
                self._take(stop)
                self.flight.clear()
                return
            for actor in self.actors.values():
                self._take(actor)
                while not actor.disk_held and actor.do_work():
                    self._take(actor)
            if not self.flight:
                return
            sender, to, message = self.flight.popleft()
            actor = self.actors[to]
            if actor.group is not None and self._connected(sender, to):
                actor.group.receive(message)
        raise AssertionError("the stage never became quiet")

    def _connected(self, a: ReplicaId, b: ReplicaId) -> bool:
        return not self.cut or any(a in side and b in side for side in self.cut)

    # Inputs.

    def on_recv(self, plain: list[str], facts: dict[str, str]) -> None:
        self.group.receive(read_message(plain[0], facts, self.group.core))

    def on_propose(self, plain: list[str], facts: dict[str, str]) -> None:
        answer = self.group.propose([word.encode() for word in plain])
        if isinstance(answer, ProposalRefused):
            self.say(f"refused {answer.reason}")

    def on_transfer(self, plain: list[str], facts: dict[str, str]) -> None:
        answer = self.group.transfer(ReplicaId(int(plain[0])))
        if answer is not None:
            self.say(f"refused {answer.reason}")

    def on_transition(self, plain: list[str], facts: dict[str, str]) -> None:
        """transition group epoch=1"""
        mode = DurabilityMode.GROUP_FSYNC if plain[0] == "group" else DurabilityMode.STRICT
        epoch = DurabilityModeEpoch(int(facts["epoch"]))
        answer = self.group.propose_transition(Transition(mode, epoch))
        if isinstance(answer, ProposalRefused):
            self.say(f"refused {answer.reason}")

    def on_change(self, plain: list[str], facts: dict[str, str]) -> None:
        """change v4 r1 [utilization=0.9]"""
        changes = tuple(Change(ChangeKind(w[0]), ReplicaId(int(w[1:]))) for w in plain)
        self.epoch = RoutingEpoch(self.epoch + 1)
        preflight = Preflight(
            float(facts.get("utilization", 0.5)), survivable=True, placement_digest=b"d"
        )
        self.group.change_membership(MembershipRequest(changes, self.epoch, preflight))

    def on_survivability_failed(self, plain: list[str], facts: dict[str, str]) -> None:
        self.group.survivability_failed()

    def on_control(self, plain: list[str], facts: dict[str, str]) -> None:
        """control [age=0] [proof=published]: the control plane was heard by everyone, or `only=`"""
        if "proof" in facts and facts["proof"] != "published":
            term, index = facts["proof"].split("/")
            self.proof = DurabilityTuple(
                Term(int(term)),
                LogIndex(int(index)),
                SegmentSeq(int(facts.get("segment", 1))),
                IoWriterMode.FIXED_URING,
                DurabilityModeEpoch(int(facts.get("epoch", 0))),
            )
        proof = VerifiedProof(self.proof, 0) if self.proof is not None else None
        for actor in self.actors.values():
            if actor.group is not None and str(actor.id) in facts.get("only", str(actor.id)):
                actor.group.control_plane(
                    ControlPlaneUpdate(
                        int(facts.get("age", 0)),
                        proof,
                        follower_read_snapshot_capability="capability" in plain,
                    )
                )

    def on_read(self, plain: list[str], facts: dict[str, str]) -> None:
        """read 7 [kind=SnapshotOnly] [within=100]"""
        kind = ReadKind(facts.get("kind", "ReadIndex"))
        deadline = self.now_ms + int(facts.get("within", 100))
        self.group.read(ReadRequest(ReadId(int(plain[0])), kind, deadline))

    def on_fsync(self, plain: list[str], facts: dict[str, str]) -> None:
        for latency in plain:
            self.group.fsync_sample(float(latency))

    def on_damaged(self, plain: list[str], facts: dict[str, str]) -> None:
        self.group.log_damaged(LogIndex(int(plain[0])), LogIndex(int(plain[1])))

    def on_applied(self, plain: list[str], facts: dict[str, str]) -> None:
        index = LogIndex(int(plain[0]))
        self.group.applied(index, index)

    def on_snapshot(self, plain: list[str], facts: dict[str, str]) -> None:
        """snapshot 5: an authorised snapshot covers that index; the log is compacted"""
        self.group.snapshot_emitted(LogIndex(int(plain[0])))

    def on_renew(self, plain: list[str], facts: dict[str, str]) -> None:
        self.group.renew_fallback()

    def on_show(self, plain: list[str], facts: dict[str, str]) -> None:
        """show: where every node stands"""
        for actor in self.actors.values():
            self.current = actor.id
            if actor.group is None:
                self.say("down")
                continue
            core = actor.group.core
            self.say(
                f"{core.role} term={core.hard.term} {core.config} commit={core.commit_index} "
                f"durable={core.local_wal_durable_index} log={describe_log(core.log)}"
            )

    # Outcomes.

    def _take(self, actor: Actor) -> None:
        group = actor.group
        if group is None:
            return
        output = group.take()
        before, self.current = self.current, actor.id
        self._say_output(output)
        self.current = before
        if output.hard_state is not None:
            actor.work.append(output.hard_state)
        actor.work += output.appends
        if output.repair is not None:
            actor.work.append(output.repair)
        if output.install is not None:
            actor.work.append(output.install)
        for to, message in output.messages:
            if to in self.actors:
                self.flight.append((actor.id, to, message))
        for fetch in output.fetches:
            group.fetched(fetch, [e for e in actor.entries if e.index >= fetch.first_index])
        if output.apply:
            group.applied(output.apply[-1].index, output.apply[-1].index)
        if output.compact_through is not None:
            log = group.core.log
            actor.entries = [e for e in actor.entries if e.index > log.base_index]
            actor.base = (log.base_index, log.base_term)
        if output.publish_proof is not None:
            self.proof = output.publish_proof
        if output.record_membership is not None:
            group.membership_acknowledged(output.record_membership)

    def _say_output(self, output: Output) -> None:
        if self.loud:
            self._say_disk(output)
            for to, message in output.messages:
                self.say(f"send {to} {describe(message)}")
            if output.apply:
                self.say(f"apply {output.apply[0].index}-{output.apply[-1].index}")
        if output.install is not None:
            self.say(f"install base={output.install.base_term}/{output.install.base_index}")
        if output.acked is not None:
            self.say(f"acked through={output.acked.through}")
        for answer in output.reads:
            if isinstance(answer, ReadGranted):
                self.say(f"granted read={answer.read_id} index={answer.index}")
            else:
                failed = answer.failed_clause
                clause = "" if failed is FailedClause.NONE else f" clause={failed}"
                self.say(f"refused read={answer.read_id} {answer.refusal}{clause}")
        if output.role is not None:
            leader = f" leader={output.role.leader_id}" if output.role.leader_id else ""
            self.say(f"{output.role.role} term={output.role.term}{leader} ({output.role.reason})")
        for note in output.notes:
            if note.kind not in QUIET_NOTES:
                self.say("note " + note.kind + "".join(f" {k}={v}" for k, v in note.facts))

    def _say_disk(self, output: Output) -> None:
        if output.hard_state is not None:
            hard = output.hard_state.state
            epoch = f" epoch={hard.durability_mode_epoch}" if hard.durability_mode_epoch else ""
            self.say(f"persist term={hard.term} voted={hard.voted_for or '-'}{epoch}")
        for batch in output.appends:
            cut = f" cut={batch.truncate_from}" if batch.truncate_from is not None else ""
            self.say(f"append{cut} {describe_entries(batch.entries)} {batch.mode.name}")
        if output.repair is not None:
            self.say(f"repair {describe_entries(list(output.repair.entries))}")


def describe_log(log: MemoryLog) -> str:
    """Write the terms of a log as runs: `1x3 2x1` is three entries of term 1, one of 2."""
    text, index = [], int(log.base_index) + 1
    while index <= log.last_index:
        term, start = log.term_at(index), index
        while index <= log.last_index and log.term_at(index) == term:
            index += 1
        text.append(f"{term}x{index - start}")
    base = f"[{log.base_index}]" if log.base_index else ""
    return base + (" ".join(text) or "-")


def _ids(text: str) -> frozenset[ReplicaId]:
    return frozenset(ReplicaId(int(word)) for word in text.split(",") if word)
