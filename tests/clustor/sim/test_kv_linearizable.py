"""The key-value machine, called by many clients at once, as the checker sees it."""

from __future__ import annotations

import random

import pytest

from clustor import kv
from clustor.sim.history import CallHistory, HistoryOperation, Process
from clustor.sim.linearizability import Ok, Violation, check
from clustor.sim.models import Cas, KeyValue, KvCall, ModelDelete, ModelGet, ModelPut


class _Clients:
    """Clients whose calls reach the machine some time after they were made, or never."""

    def __init__(self, seed: int, *, stale_reads: bool = False) -> None:
        self._random = random.Random(seed)
        self._machine = kv.KvMachine(kv.StoreId(b"s"))
        # A replica that is restored now and then: reads from it are the planted mistake.
        self._behind = kv.KvMachine(kv.StoreId(b"s"))
        self._stale_reads = stale_reads
        self._history = CallHistory[KvCall]()
        self._calls: dict[Process, KvCall] = {}
        self._results: dict[Process, object] = {}
        self._lost: list[KvCall] = []

    def run(self, steps: int) -> tuple[HistoryOperation[KvCall], ...]:
        for _ in range(steps):
            self._step(Process(self._random.randrange(5)))
        return self._history.operations()

    def _step(self, process: Process) -> None:
        if self._lost and self._random.random() < 0.1:
            self._take_effect(self._lost.pop())
        if self._random.random() < 0.05:
            self._behind.restore(self._machine.snapshot())
        if process not in self._calls:
            self._calls[process] = self._draw()
            self._history.invoke(process, self._calls[process])
        elif process in self._results:
            del self._calls[process]
            result = self._results.pop(process)
            assert result is None or isinstance(result, bytes | bool)
            self._history.ok(process, result)
        elif self._random.random() < 0.1:
            self._lose(process)
        else:
            self._results[process] = self._take_effect(self._calls[process])

    def _lose(self, process: Process) -> None:
        """The client gives up and goes on to its next call; this one may still arrive."""
        self._history.unknown(process)
        call = self._calls.pop(process)
        if self._random.random() < 0.5:
            self._lost.append(call)

    def _draw(self) -> KvCall:
        key = self._random.choice("xyz")
        value = self._random.choice([b"1", b"2", b"3"])
        expected = self._random.choice([None, b"1", b"2", b"3"])
        calls: list[KvCall] = [
            ModelGet(key),
            ModelGet(key),
            ModelPut(key, value),
            Cas(key, expected, value),
            ModelDelete(key),
        ]
        return self._random.choice(calls)

    def _take_effect(self, call: KvCall) -> object:
        machine = self._machine
        key = kv.Key(str(call.key).encode())
        command: kv.Command
        match call:
            case ModelGet():
                command = kv.Get(key)
                machine = self._behind if self._stale_reads else machine
            case ModelPut(value=value):
                command = kv.Put(key, value)
            case Cas(expected=expected, value=value):
                command = kv.CasValue(key, expected, value)
            case ModelDelete():
                command = kv.Delete(key)
            case _:
                raise AssertionError(call)
        encoded = kv.encode_command(command)
        match kv.decode_reply(machine.apply(machine.applied_index + 1, encoded)):
            case kv.Found(record=record):
                return None if record is None else record.value
            case kv.KvWritten():
                return True if isinstance(call, Cas) else None
            case kv.Conflict():
                return False
            case kv.Deleted(count=count):
                return count == 1
            case reply:
                raise AssertionError(reply)


@pytest.mark.parametrize("seed", range(20))
def test_the_machine_is_linearizable_with_calls_lost_and_late(seed: int) -> None:
    history = _Clients(seed).run(steps=600)
    assert len(history) > 150
    assert any(operation.returned is None for operation in history)
    verdict = check(history, KeyValue(), budget=500_000)
    assert isinstance(verdict, Ok), verdict


@pytest.mark.parametrize("seed", range(20))
def test_reads_from_a_replica_that_lags_are_found_out(seed: int) -> None:
    history = _Clients(seed, stale_reads=True).run(steps=600)
    verdict = check(history, KeyValue(), budget=500_000)
    assert isinstance(verdict, Violation), verdict
    assert isinstance(verdict.culprit.call, ModelGet | Cas | ModelDelete)
