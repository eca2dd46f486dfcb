"""Clients of the simulated store: they ask, wait, give up, and remember what they were told."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from random import Random

from clustor import kv
from clustor.raft.types import ReplicaId
from clustor.replica import (
    Applied,
    NotLeader,
    ReadDenied,
    ReadReady,
    ReplicaOutput,
    RequestId,
    RequestsRefused,
    Unknown,
)
from clustor.sim.driver import ReplicaDriver, SimNode, World
from clustor.sim.history import CallHistory, Process
from clustor.sim.models import Cas, KvCall, ModelDelete, ModelGet, ModelPut
from clustor.sim.recording import WatchedMachine
from clustor.sim.scenario import MS, Scenario


@dataclass(slots=True)
class _Asked:
    process: Process
    group: int
    call: KvCall
    seat: ReplicaDriver


class Clients:
    """Some processes, each with one call open at a time."""

    def __init__(self, cluster: World, scenario: Scenario, rng: Random) -> None:
        self._cluster = cluster
        self._scenario = scenario
        self._rng = rng
        self._asked: dict[RequestId, _Asked] = {}
        self._next_request = 1
        self._believed: dict[tuple[Process, int], ReplicaId] = {}
        self.history = CallHistory[KvCall]()
        self.begun = 0
        self.answered = 0
        self.probing = False  # the faults are over: ask until everything answers
        self.probes_answered: set[int] = set()
        for number in range(scenario.clients):
            cluster.later(rng.randint(200 * MS, 500 * MS), self._next(Process(number)))

    def _next(self, process: Process) -> _Next:
        return _Next(self, process)

    def step(self, process: Process) -> None:
        """Begin a process's next call."""
        if self.begun >= self._scenario.operations_max and not self.probing:
            self._cluster.later(20 * MS, self._next(process))
            return
        self.begun += 1
        group = self._rng.randrange(self._scenario.groups)
        if self.probing:
            left = [g for g in range(self._scenario.groups) if g not in self.probes_answered]
            group = left[0] if left else group
        call = self._draw(group)
        seat = self._pick(process, group)
        self.history.invoke(process, call)
        if seat.replica is None or not seat.replica.ready:
            self._believed.pop((process, group), None)
            self._end(process, happened=False)
            return
        self._ask(process, group, call, seat)

    def _draw(self, group: int) -> KvCall:
        key = f"{group}/{self._rng.randrange(self._scenario.keys)}"
        value = f"v{self.begun}".encode()
        if self.probing:
            return ModelPut(key, value)
        choice = self._rng.randrange(10)
        if choice < 4:
            return ModelPut(key, value)
        if choice < 7:
            return ModelGet(key)
        if choice < 9:
            expected = f"v{self._rng.randint(max(1, self.begun - 8), self.begun)}".encode()
            return Cas(key, self._rng.choice((None, expected)), value)
        return ModelDelete(key)

    def _pick(self, process: Process, group: int) -> ReplicaDriver:
        """Go on with whoever answered last: clients notice a new leader one by one."""
        believed = self._believed.get((process, group))
        if believed is None or self._rng.random() < 0.05:
            believed = self._rng.choice(sorted(self._cluster.nodes))
        return self._cluster.nodes[believed].seats[group]

    def _ask(self, process: Process, group: int, call: KvCall, seat: ReplicaDriver) -> None:
        request = RequestId(self._next_request)
        self._next_request += 1
        self._asked[request] = _Asked(process, group, call, seat)
        wait = self._rng.choice((300, 1_000, 3_000)) * MS
        self._cluster.later(wait, lambda: self._give_up(request))
        assert seat.replica is not None
        if isinstance(call, ModelGet) and self._rng.random() < 0.7:
            seat.replica.read(request, seat.node.now_ms() + wait // MS)
        else:
            command = _command(call, request)
            seat.judge.on_request(request, command)
            seat.replica.propose(request, command)
        seat.turn()

    def _give_up(self, request: RequestId) -> None:
        asked = self._asked.pop(request, None)
        if asked is None:
            return
        self._believed.pop((asked.process, asked.group), None)
        self.history.unknown(asked.process)
        self._again(asked.process)

    # What a cluster tells its crowd. A client here only notices that nobody answers.

    def on_start(self, node: SimNode) -> None:
        """Nothing to do."""

    def on_stop(self, node: SimNode) -> None:
        """Nothing to do."""

    def on_tick(self, node: SimNode) -> None:
        """Nothing to do."""

    # Answers.

    def on_output(self, seat: ReplicaDriver, output: ReplicaOutput) -> None:
        for outcome in output.replies:
            match outcome:
                case Applied():
                    for request, reply in zip(outcome.request_ids, outcome.replies, strict=True):
                        self._on_reply(request, reply)
                case NotLeader():
                    for request in outcome.request_ids:
                        self._on_not_leader(request, outcome.leader_id)
                case RequestsRefused():
                    for request in outcome.request_ids:
                        self._did_not_happen(request)
                case Unknown():
                    for request in outcome.request_ids:
                        self._give_up(request)
        for answer in output.reads:
            match answer:
                case ReadReady():
                    self._on_read(seat, answer.request_id)
                case ReadDenied():
                    self._on_not_leader(answer.request_id, answer.leader_id)

    def _on_reply(self, request: RequestId, reply: bytes) -> None:
        asked = self._asked.get(request)
        if asked is None:
            return
        self._believed[asked.process, asked.group] = asked.seat.replica_id
        self._answer(request, _result(asked.call, kv.decode_reply(reply)))

    def _on_read(self, seat: ReplicaDriver, request: RequestId) -> None:
        asked = self._asked.get(request)
        if asked is None:
            return
        machine = seat.running.machine
        assert isinstance(machine, WatchedMachine)
        self._answer(request, machine.value(kv.Key(str(asked.call.key).encode())))

    def _answer(self, request: RequestId, result: Hashable) -> None:
        asked = self._asked.pop(request)
        self.answered += 1
        if self.probing:
            self.probes_answered.add(asked.group)
        self.history.ok(asked.process, result)
        self._cluster.trace("answer", request, result)
        self._again(asked.process)

    def _on_not_leader(self, request: RequestId, leader: ReplicaId | None) -> None:
        asked = self._asked.get(request)
        if asked is None:
            return
        if leader is None:
            self._believed.pop((asked.process, asked.group), None)
        else:
            self._believed[asked.process, asked.group] = leader
        self._did_not_happen(request)

    def _did_not_happen(self, request: RequestId) -> None:
        asked = self._asked.pop(request, None)
        if asked is not None:
            self._end(asked.process, happened=False)

    def _end(self, process: Process, *, happened: bool) -> None:
        if not happened:
            self.history.did_not_happen(process)
        self._again(process)

    def _again(self, process: Process) -> None:
        pause = self._rng.randint(1 * MS, 60 * MS) + (100 * MS if self.probing else 0)
        self._cluster.later(pause, self._next(process))


@dataclass(frozen=True, slots=True)
class _Next:
    clients: Clients
    process: Process

    def __call__(self) -> None:
        self.clients.step(self.process)


def _command(call: KvCall, request: RequestId) -> bytes:
    """Encode a call; the client id makes its bytes unlike those of any other."""
    key = kv.Key(str(call.key).encode())
    client = kv.ClientId(b"%d" % request)
    match call:
        case ModelGet():
            # A read through the log: a transaction that only looks.
            return kv.encode_command(kv.Txn([], [kv.TxnGet(key)], client_id=client, sequence=1))
        case ModelPut(value=value):
            return kv.encode_command(kv.Put(key, value, client_id=client, sequence=1))
        case Cas(expected=expected, value=value):
            return kv.encode_command(
                kv.CasValue(key, expected, value, client_id=client, sequence=1)
            )
        case ModelDelete():
            return kv.encode_command(kv.Delete(key, client_id=client, sequence=1))
        case _:
            raise AssertionError(call)


def _result(call: KvCall, reply: kv.Reply) -> Hashable:
    """Say what the call told its caller, in the model's words."""
    match call, reply:
        case ModelPut(), kv.KvWritten():
            return None
        case Cas(), kv.KvWritten():
            return True
        case Cas(), kv.Conflict():
            return False
        case ModelDelete(), kv.Deleted():
            return reply.count > 0
        case ModelGet(), kv.TxnDone():
            return _first_value(reply)
        case _:
            raise AssertionError(f"{call} was answered with {reply}")


def _first_value(reply: kv.TxnDone) -> bytes | None:
    found = reply.results[0]
    return found.value if isinstance(found, kv.KvRecord) else None
