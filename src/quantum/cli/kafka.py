"""`quantum kafka …`: topics, groups, records and transactions, over Kafka's own protocol."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from clustor.wall_clock import wall_clock_ms
from quantum.cli.broker import AsJson, print_table
from quantum.cli.exits import Exit, fail
from quantum.cli.kafka_client import (
    EARLIEST,
    LATEST,
    KafkaCluster,
    KafkaRefused,
    tls_context,
)
from quantum.protocols.kafka.codec import ApiKey, KafkaCode, KafkaError, KafkaRecord

BROKER_DEFAULT: Final = "127.0.0.1:9092"
_BATCH_RECORDS: Final = 500
_WAIT_MS: Final = 1_000
_TIMEOUT_MS: Final = 30_000

Broker = Annotated[
    str,
    typer.Option(metavar="HOST:PORT", envvar="QUANTUM_KAFKA_BROKER", help="Any Kafka listener."),
]
Ca = Annotated[Path | None, typer.Option("--ca", help="Whose certificates are believed (TLS).")]
Cert = Annotated[Path | None, typer.Option("--cert", help="A client's certificate.")]
Key = Annotated[Path | None, typer.Option("--key", help="And its key.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]

_SENTENCES: Final = {
    KafkaCode.unknown_topic_or_partition: (
        "no such topic or partition; `quantum kafka topics` lists them",
        Exit.NOT_FOUND,
    ),
    KafkaCode.group_id_not_found: (
        "no such group; `quantum kafka groups` lists them",
        Exit.NOT_FOUND,
    ),
    KafkaCode.topic_already_exists: (
        "there is a topic of that name already; `quantum kafka describe` shows it",
        Exit.FAILED,
    ),
    KafkaCode.non_empty_group: (
        "the group has members: stop its consumers first",
        Exit.FAILED,
    ),
}
"""What people are told for codes that their own words bring about."""

app = typer.Typer(help="Kafka's topics, groups, records, transactions.", no_args_is_help=True)


@contextmanager
def _calling(
    broker: str, ca: Path | None, cert: Path | None, key: Path | None
) -> Iterator[KafkaCluster]:
    """Speak with a cluster; what goes wrong is one sentence and an exit code."""
    host, _, port = broker.rpartition(":")
    if not host or not port.isdecimal():
        fail(f"--broker is HOST:PORT, not {broker!r}", Exit.USAGE)
    cluster = KafkaCluster(host, int(port), tls_context(ca, cert, key))
    try:
        yield cluster
    except KafkaRefused as refused:
        fail(*_SENTENCES.get(refused.code, (str(refused), Exit.FAILED)))
    except KafkaError as error:
        fail(f"{broker} does not speak Kafka: {error}", Exit.FAILED)
    except OSError as error:
        fail(f"no Kafka at {broker}: {error}; start a broker with `make run`", Exit.UNREACHABLE)
    finally:
        cluster.close()


def _show(title: str, rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows))
    elif rows:
        print_table(title, tuple(rows[0]), rows)
    else:
        typer.echo(f"{title}: none")


def _raise(code: KafkaCode, reason: str | None = None) -> None:
    if code is not KafkaCode.none:
        raise KafkaRefused(code, reason)


@app.command()
def topics(
    broker: Broker = BROKER_DEFAULT,
    *,
    create: Annotated[str, typer.Option(metavar="NAME", help="Create this one.")] = "",
    partitions: Annotated[int, typer.Option(help="How many it has; more of an old one.")] = 0,
    config: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE")] = None,
    grow: Annotated[str, typer.Option(metavar="NAME", help="Give it more --partitions.")] = "",
    delete: Annotated[str, typer.Option(metavar="NAME", help="End this one.")] = "",
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List topics; with --create, --grow or --delete, change one."""
    with _calling(broker, ca, cert, key) as cluster:
        if create:
            _create(cluster, create, partitions, config or [])
        if grow:
            wanted = {"name": grow, "count": partitions, "assignments": None}
            facts = {"topics": [wanted], "timeout": _TIMEOUT_MS, "validate_only": False}
            row = cluster.ask(ApiKey.CREATE_PARTITIONS, facts).results[0]
            _raise(row.error_code, row.error_message)
        if delete:
            facts = {"topic_names": [delete], "timeout": _TIMEOUT_MS}
            _raise(cluster.ask(ApiKey.DELETE_TOPICS, facts).responses[0].error_code)
        rows = [
            {"topic": each.name, "partitions": len(each.partitions)}
            for each in sorted(cluster.metadata(None).topics, key=lambda each: each.name or "")
        ]
        _show("Topics", rows, as_json=as_json)


def _create(cluster: KafkaCluster, name: str, partitions: int, config: list[str]) -> None:
    said = [each.partition("=") for each in config]
    wanted = {
        "name": name,
        "num_partitions": partitions or -1,
        "replication_factor": -1,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, _, value in said],
    }
    facts = {"topics": [wanted], "timeout": _TIMEOUT_MS, "validate_only": False}
    row = cluster.ask(ApiKey.CREATE_TOPICS, facts).topics[0]
    _raise(row.error_code, row.error_message)


@app.command()
def describe(
    topic: Topic,
    broker: Broker = BROKER_DEFAULT,
    *,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show a topic: who leads its partitions, where they begin and end, and its configs."""
    with _calling(broker, ca, cert, key) as cluster:
        rows = [
            {
                "partition": each.partition_index,
                "leader": each.leader_id,
                "epoch": each.leader_epoch,
                "start": cluster.offset(topic, each.partition_index, EARLIEST),
                "end": cluster.offset(topic, each.partition_index, LATEST),
            }
            for each in cluster.topic(topic).partitions
        ]
        resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
        facts = {"resources": [resource], "include_synonyms": False}
        found = cluster.ask(ApiKey.DESCRIBE_CONFIGS, facts).results[0]
        configs = {each.name: each.value for each in found.configs}
        if as_json:
            typer.echo(json.dumps({"topic": topic, "partitions": rows, "configs": configs}))
            return
        _show(topic, rows, as_json=False)
        for name, value in configs.items():
            typer.echo(f"{name} = {value}")


@app.command()
def produce(
    topic: Topic,
    values: Annotated[list[str] | None, typer.Argument(help="None: the lines of stdin.")] = None,
    broker: Broker = BROKER_DEFAULT,
    *,
    record_key: Annotated[str, typer.Option("--record-key", help="The records' key.")] = "",
    partition: Annotated[int, typer.Option(help="Where to.")] = 0,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Produce records; it ends with 0 when all are durable on a quorum."""
    with _calling(broker, ca, cert, key) as cluster:
        cluster.topic(topic)
        lines = values if values else (line.rstrip("\n") for line in sys.stdin)
        batch: list[KafkaRecord] = []
        count = 0
        for line in lines:
            said = record_key.encode() or None
            batch.append(KafkaRecord(len(batch), wall_clock_ms(), said, line.encode()))
            if len(batch) >= _BATCH_RECORDS:
                cluster.produce(topic, partition, batch)
                count, batch = count + len(batch), []
        if batch:
            cluster.produce(topic, partition, batch)
            count += len(batch)
        told = {"topic": topic, "partition": partition, "records": count}
        counted = "1 record is" if count == 1 else f"{count} records are"
        typer.echo(json.dumps(told) if as_json else f"{counted} durable on a quorum")


@app.command()
def consume(
    topic: Topic,
    broker: Broker = BROKER_DEFAULT,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more, for ever.")] = False,
    start: Annotated[int, typer.Option("--from", help="An offset; -2 first, -1 next.")] = EARLIEST,
    count: Annotated[int, typer.Option(help="So many; 0: all.")] = 0,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Print what was committed, partition by partition; with --follow, as it comes."""
    with _calling(broker, ca, cert, key) as cluster:
        parts = [each.partition_index for each in cluster.topic(topic).partitions]
        places = {p: cluster.offset(topic, p, start) if start < 0 else start for p in parts}
        ends = {p: cluster.offset(topic, p, LATEST) for p in parts}
        printed = 0
        while not count or printed < count:
            moved = False
            for p in parts:
                if not follow and places[p] >= ends[p]:
                    continue
                wait_ms = _WAIT_MS if follow and len(parts) == 1 else 0
                records, following = cluster.fetch(topic, p, places[p], wait_ms)
                moved = moved or following > places[p]
                places[p] = following
                for record in records[: count - printed if count else None]:
                    _print_record(topic, p, record, as_json=as_json)
                    printed += 1
            if not moved and not follow:
                return
            if not moved:
                time.sleep(0.05)


def _print_record(topic: str, p: int, record: KafkaRecord, *, as_json: bool) -> None:
    value = None if record.value is None else record.value.decode(errors="replace")
    if not as_json:
        typer.echo("" if value is None else value)
        return
    key = None if record.key is None else record.key.decode(errors="replace")
    headers = [
        (name, None if said is None else said.decode(errors="replace"))
        for name, said in record.headers
    ]
    row = {"topic": topic, "partition": p, "offset": record.offset}
    row |= {"timestamp": record.timestamp}
    typer.echo(json.dumps(row | {"key": key, "value": value, "headers": headers}))


@app.command()
def groups(
    broker: Broker = BROKER_DEFAULT,
    *,
    delete: Annotated[str, typer.Option(metavar="NAME", help="Forget this one.")] = "",
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List consumer groups, of all nodes."""
    with _calling(broker, ca, cert, key) as cluster:
        if delete:
            facts = {"groups_names": [delete]}
            found = cluster.at_coordinator(delete, ApiKey.DELETE_GROUPS, facts)
            _raise(found.results[0].error_code)
        rows = []
        for node in cluster.brokers():
            found = cluster.ask_node(node, ApiKey.LIST_GROUPS, {"states_filter": []})
            rows += [
                {"group": each.group_id, "state": each.group_state, "coordinator": node}
                for each in found.groups
            ]
        _show("Groups", sorted(rows, key=lambda each: str(each["group"])), as_json=as_json)


@app.command()
def lag(
    group: Annotated[str, typer.Argument(metavar="[GROUP]", help="Without one: of all.")] = "",
    broker: Broker = BROKER_DEFAULT,
    *,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Say how far a group is behind the end of each partition that it committed.

    Without a group: of every group how far it is behind in all, the furthest first.
    """
    with _calling(broker, ca, cert, key) as cluster:
        if group:
            rows = _lags(cluster, group)
            if not rows:
                _require_group(cluster, group)
            _show(f"Lag of {group}", rows, as_json=as_json)
            return
        rows = []
        for node in cluster.brokers():
            for each in cluster.ask_node(node, ApiKey.LIST_GROUPS, {"states_filter": []}).groups:
                lags = [row["lag"] for row in _lags(cluster, each.group_id)]
                row = {"group": each.group_id, "state": each.group_state}
                rows.append(row | {"partitions": len(lags), "lag": sum(lags)})
        rows.sort(key=lambda row: (-row["lag"], row["group"]))
        _show("Lag", rows, as_json=as_json)


def _require_group(cluster: KafkaCluster, group: str) -> None:
    """Raise KafkaRefused where nobody knows the group: it is no group that is up to date."""
    facts = {"groups": [group], "include_authorized_operations": False}
    found = cluster.at_coordinator(group, ApiKey.DESCRIBE_GROUPS, facts).groups[0]
    _raise(found.error_code)
    if found.group_state == "Dead":
        raise KafkaRefused(KafkaCode.group_id_not_found)


def _lags(cluster: KafkaCluster, group: str) -> list[dict[str, Any]]:
    facts = {"group_id": group, "topics": None}
    found = cluster.again(lambda: cluster.at_coordinator(group, ApiKey.OFFSET_FETCH, facts))
    _raise(found.error_code)
    rows = []
    for topic in found.topics:
        cluster.metadata([topic.name])
        for each in topic.partitions:
            end = cluster.offset(topic.name, each.partition_index, LATEST)
            row = {"topic": topic.name, "partition": each.partition_index}
            row |= {"committed": each.committed_offset, "end": end}
            rows.append(row | {"lag": max(0, end - each.committed_offset)})
    return rows


@app.command()
def transactions(
    broker: Broker = BROKER_DEFAULT,
    *,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List transactional ids, of all nodes, and where each stands."""
    with _calling(broker, ca, cert, key) as cluster:
        rows = []
        for node in cluster.brokers():
            facts: dict[str, Any] = {"state_filters": [], "producer_id_filters": []}
            found = cluster.ask_node(node, ApiKey.LIST_TRANSACTIONS, facts)
            for each in found.transaction_states:
                row = {"transactional_id": each.transactional_id, "state": each.transaction_state}
                rows.append(row | {"producer_id": each.producer_id, "coordinator": node})
        _show("Transactions", rows, as_json=as_json)
