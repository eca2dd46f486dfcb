"""`quantum traces`: trees over the files of several nodes, whatever else is in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from clustor.telemetry.tracing import NO_PARENT, Attribute, Span, encode_spans
from quantum.cli.traces import traces

app = typer.Typer()
app.command()(traces)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def span(name: str, number: int, parent: int, **facts: Attribute) -> Span:
    return Span(
        trace_id=bytes.fromhex(TRACE),
        span_id=number.to_bytes(8, "big"),
        parent_id=parent.to_bytes(8, "big") if parent else NO_PARENT,
        name=name,
        began_ns=1_000_000 * number,
        ended_ns=1_000_000 * number + 500_000,
        attributes=facts,
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for node, spans in (
        (1, [span("publish", 2, 99, topic="t"), span("forward", 4, 2), span("authorise", 3, 2)]),
        (2, [span("fsync", 5, 4, qos=1), span("apply", 6, 4)]),
        (3, [span("deliver", 7, 2)]),
    ):
        directory = tmp_path / f"node-{node}" / "traces"
        directory.mkdir(parents=True)
        lines = b'{"resou\n' + encode_spans(node, spans) + b"[]\n{}\n"
        (directory / "spans-0000000001.jsonl").write_bytes(lines)
    return tmp_path


def test_a_trace_is_one_tree_over_all_nodes(data: Path) -> None:
    result = run(data)
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        f"trace {TRACE}",
        "  publish  node 1  0.500 ms  topic=t",
        "    authorise  node 1  0.500 ms",
        "    forward  node 1  0.500 ms",
        "      fsync  node 2  0.500 ms  qos=1",
        "      apply  node 2  0.500 ms",
        "    deliver  node 3  0.500 ms",
    ]


def test_one_node_tells_its_part_and_json_tells_everything(data: Path) -> None:
    assert run(data / "node-2").output.splitlines()[1:] == [
        "  fsync  node 2  0.500 ms  qos=1",
        "  apply  node 2  0.500 ms",
    ]
    told = [json.loads(line) for line in run(data, "--json", "--trace", TRACE).output.splitlines()]
    assert [each["name"] for each in told] == [
        "publish",
        "authorise",
        "forward",
        "fsync",
        "apply",
        "deliver",
    ]
    assert told[3]["attributes"] == {"qos": 1} and told[3]["node"] == 2


def test_nothing_found_is_said(data: Path, tmp_path: Path) -> None:
    assert run(data, "--trace", "0" * 32).exit_code == 3
    assert run(tmp_path / "nowhere").exit_code == 3


def test_a_span_that_is_its_own_parent_ends(tmp_path: Path) -> None:
    directory = tmp_path / "traces"
    directory.mkdir()
    line = encode_spans(1, [span("odd", 1, 1), span("loop", 2, 3), span("pool", 3, 2)])
    (directory / "spans-0000000001.jsonl").write_bytes(line)
    assert run(tmp_path).exit_code == 0
