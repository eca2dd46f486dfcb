"""`quantum sim` as a script sees it: lines of JSON, hashes that repeat, an exit code."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from clustor.raft.outbox import GroupOutbox
from quantum.cli.sim import sim

RUNNER = CliRunner()


def run(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    app = typer.Typer()
    app.command()(sim)
    result = RUNNER.invoke(app, [*arguments, "--json"])
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    return result.exit_code, [json.loads(line) for line in lines]


def test_each_seed_is_a_line_and_the_last_one_sums_up() -> None:
    code, lines = run("--seed", "2", "--seeds", "2")
    assert code == 0
    assert [line["seed"] for line in lines[:-1]] == [2, 3]
    assert all(len(bytes.fromhex(line["trace_hash"])) == 16 for line in lines[:-1])
    summary = lines[-1]
    assert summary["seeds"] == 2
    assert summary["violations"] == 0
    acknowledged = sum(line["acknowledged_writes"] for line in lines[:-1])
    assert summary["acknowledged_writes"] == acknowledged > 0
    assert sum(summary["faults"].values()) > 0


def test_the_same_seed_has_the_same_hash() -> None:
    assert run("--seed", "2", "--seeds", "1")[1][0] == run("--seed", "2", "--seeds", "1")[1][0]


def test_several_processes_say_the_same_in_the_same_order() -> None:
    alone, shared = run("--seeds", "5"), run("--seeds", "5", "--processes", "2")
    assert shared == alone


def test_several_processes_end_when_the_time_is_over() -> None:
    code, lines = run("--minutes", "0.001", "--processes", "2")
    assert code == 0
    assert lines[-1]["seeds"] == len(lines) - 1


def test_a_violation_is_exit_code_1_and_can_be_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is merely in the log applied, even a calm cluster breaks its promises."""
    monkeypatch.setattr(GroupOutbox, "_apply_limit", lambda self: self.core.log.last_index)
    code, lines = run("--seed", "2", "--seeds", "1", "--shrink")
    assert code == 1
    assert lines[0]["violation"] is not None
    assert lines[1]["shrunk"] and lines[1]["faults"] == []
    assert lines[-1]["failing_seeds"] == [2]
