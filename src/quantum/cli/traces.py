"""`quantum traces`: what happened to single messages, on every node, as trees."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from clustor.runtime.telemetry.trace_file import TRACES_DIRECTORY
from clustor.telemetry.tracing import Span, decode_spans
from quantum.cli.exits import Exit, fail, fail_path

_INDENT: Final = "  "

Told: TypeAlias = tuple[int, Span]
"""A span, and the node that tells of it."""


def traces(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="The data directory of a node or of its cluster.")
    ],
    *,
    trace: Annotated[str, typer.Option(metavar="ID", help="Only this one, by 32 digits.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per span.")] = False,
) -> None:
    """Print traces of messages, over all nodes of a cluster.

    Nodes write them where the setting `traces` is on. Exit codes: 0 printed, 3 there are none.
    """
    found: dict[bytes, list[Told]] = defaultdict(list)
    try:
        for node, span in _spans(path):
            if not trace or span.trace_id.hex() == trace.lower():
                found[span.trace_id].append((node, span))
    except OSError as error:
        fail_path(error)
    if not found:
        fail(f"no traces in {path}; the setting `traces` turns them on", Exit.NOT_FOUND)
    newest = sorted(found.values(), key=lambda spans: max(span.began_ns for _, span in spans))
    for spans in newest[-limit:]:
        for line in _as_json(spans) if as_json else _as_tree(spans):
            typer.echo(line)


def _spans(path: Path) -> Iterator[Told]:
    files = [*path.glob(f"{TRACES_DIRECTORY}/*.jsonl")]
    files += path.glob(f"node-*/{TRACES_DIRECTORY}/*.jsonl")
    for file in sorted(files):
        with file.open("rb") as lines:
            for line in lines:
                yield from decode_spans(line)


def _as_json(spans: list[Told]) -> Iterator[str]:
    for node, span in sorted(spans, key=lambda told: told[1].began_ns):
        yield json.dumps(
            {
                "trace": span.trace_id.hex(),
                "span": span.span_id.hex(),
                "parent": span.parent_id.hex(),
                "name": span.name,
                "node": node,
                "began_ns": span.began_ns,
                "ended_ns": span.ended_ns,
                "attributes": span.attributes,
                "error": span.error,
            }
        )


def _as_tree(spans: list[Told]) -> Iterator[str]:
    """Print parents before children; a span whose parent nobody here tells of is a root."""
    children: dict[bytes, list[Told]] = defaultdict(list)
    ids = {span.span_id for _, span in spans}
    for told in sorted(spans, key=lambda told: told[1].began_ns):
        parent_id = told[1].parent_id
        children[parent_id if parent_id in ids else b""].append(told)
    yield f"trace {spans[0][1].trace_id.hex()}"
    waiting = [(1, told) for told in reversed(children[b""])]
    while waiting:
        depth, (node, span) = waiting.pop()
        yield _INDENT * depth + _line(node, span)
        waiting += [(depth + 1, told) for told in reversed(children.pop(span.span_id, []))]


def _line(node: int, span: Span) -> str:
    milliseconds = (span.ended_ns - span.began_ns) / 1_000_000
    facts = " ".join(f"{key}={value}" for key, value in span.attributes.items())
    error = f" failed: {span.error}" if span.error else ""
    return f"{span.name}  node {node}  {milliseconds:.3f} ms{error}  {facts}".rstrip()
