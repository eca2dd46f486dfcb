"""`quantum why`: why a client waits, is refused or is slow; why a group does not work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

import typer

from clustor.runtime.peers.transport import Address
from quantum.cli.admin_client import (
    AdminUnreachable,
    fail_unreachable,
    fetch,
    fetch_status,
    parse_address,
)
from quantum.cli.broker import ADMIN_DEFAULT, Admin, AsJson
from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail
from quantum.cli.naming import pasteable


@speaking
def why(
    target: Annotated[str, typer.Argument(metavar="CLIENT_ID|GROUP", help="Whom it is about.")],
    admin: Admin = ADMIN_DEFAULT,
    *,
    tenant: Annotated[str, typer.Option(help="The client's tenant, where several have it.")] = "",
    topic: Annotated[str, typer.Option(help="Also say whether it may publish to this.")] = "",
    client: Annotated[bool, typer.Option("--client", help="A number is a client id too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what stands in the way of a client or of a group, in sentences.

    Every node that answers is asked: the one that serves the client knows most, and the one that
    refused it knows why. Exit code 0: nothing is wrong. 1: something is. 3: there is no such
    group. 12: no node answered.
    """
    nodes = find_nodes(admin)
    if target.isdigit() and not client:
        _group(nodes, int(target), as_json=as_json)
    else:
        wanted = {"tenant": tenant, "topic": topic}
        query = urlencode({name: value for name, value in wanted.items() if value})
        _client(nodes, target, f"?{query}" if query else "", as_json=as_json)


def find_nodes(admin: str) -> dict[int, Address]:
    """Ask the node who the others are."""
    try:
        status = fetch_status(parse_address(admin))
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except AdminUnreachable as error:
        fail_unreachable(error, "start a broker with `make run`")
    nodes = {entry["node_id"]: parse_address(entry["admin"]) for entry in _reachable(status)}
    return nodes | {status["node_id"]: parse_address(admin)}


def _reachable(status: dict[str, Any]) -> list[dict[str, Any]]:
    """Leave out addresses that cannot be asked: a node alone may listen on a port of its own."""
    return [entry for entry in status["nodes"] if not entry["admin"].endswith(":0")]


def ask_all(nodes: dict[int, Address], path: str) -> Iterator[tuple[int, int, Any]]:
    """Ask every node; give its id, its code and its answer, and say who does not answer."""
    for node, address in sorted(nodes.items()):
        try:
            code, answer = fetch(address, path)
        except AdminUnreachable:
            typer.echo(f"node {node} does not answer", err=True)
            continue
        yield node, code, answer


# Clients.


def _client(nodes: dict[int, Address], client: str, query: str, *, as_json: bool) -> None:
    path = f"/clients/{quote(client, safe='')}/why{query}"
    answers = {node: page for node, code, page in ask_all(nodes, path) if code == 200}
    if not answers:
        fail("no node serves MQTT clients, or knows that tenant", Exit.NOT_FOUND)
    if as_json:
        typer.echo(json.dumps(answers))
    else:
        for line in client_lines(client, answers):
            typer.echo(line)
    raise typer.Exit(Exit.FAILED if any(_is_wrong(answers)) else 0)


def _is_wrong(answers: dict[int, dict[str, Any]]) -> Iterator[bool]:
    for _, cause in client_causes(answers):
        yield cause["is_wrong"]


def client_causes(answers: dict[int, dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Choose what to tell: the serving node's causes first, then what others refused.

    Where one node serves the client, what another says of its leader is out of date.
    """
    serving = [node for node, page in answers.items() if page["served_here"]]
    told = [(node, cause) for node in serving for cause in answers[node]["causes"]]
    for node, page in answers.items():
        if node not in serving:
            told += [
                (node, cause)
                for cause in page["causes"]
                if not serving or cause["clause"] == "Recently"
            ]
    first: dict[str, tuple[int, dict[str, Any]]] = {}
    for node, cause in told:
        first.setdefault(cause["sentence"], (node, cause))
    return list(first.values())


def client_lines(client: str, answers: dict[int, dict[str, Any]]) -> Iterator[str]:
    """Give the sentences about one client."""
    page = next(iter(answers.values()))
    state = "connected" if any(each["connected"] for each in answers.values()) else "away"
    yield (
        f"{client}: {state}, partition {page['partition']} of tenant {page['tenant']} "
        f"(group {page['group']})"
    )
    for node, cause in client_causes(answers):
        yield f"  node {node}: {cause['sentence']}"
        if cause["remedy"]:
            yield f"    → {pasteable(cause['remedy'])}"


# Groups.

_BY_CAUSE: Final = (
    *("WhyDiskBlocked", "WhyQuarantined", "WhyNotLeader", "WhyCreditZero"),
    *("WhyCreditHint", "WhySnapshotBlocked", "WhyDurabilityMode"),
)
"""The questions, what causes others first."""
_FOLLOWS_FROM: Final = {
    "WhyNotLeader": frozenset({"WhyDiskBlocked", "WhyQuarantined"}),
    "WhyCreditZero": frozenset({"WhyDiskBlocked", "WhyQuarantined"}),
    "WhyCreditHint": frozenset({"WhyDiskBlocked", "WhyQuarantined", "WhyCreditZero"}),
    "WhySnapshotBlocked": frozenset({"WhyDiskBlocked", "WhyQuarantined"}),
}
_DAILY: Final = frozenset(
    {"AnotherIsUnderWay", "InstallingSnapshot", "NewestWaitsForQuorum", "FenceUnderWay", "Repaired"}
)
"""What holds for a while in every healthy group: snapshots and fences that are under way."""


def _group(nodes: dict[int, Address], group: int, *, as_json: bool) -> None:
    path = f"/groups/{group}/why"
    answers = {node: page for node, code, page in ask_all(nodes, path) if code == 200}
    if not answers:
        fail(
            f"no node hosts group {group}; a client whose id is a number needs --client",
            Exit.NOT_FOUND,
        )
    if as_json:
        typer.echo(json.dumps(answers))
    else:
        for line in group_lines(group, answers):
            typer.echo(line)
    raise typer.Exit(Exit.FAILED if any(_group_wrong(answers)) else 0)


def _leads(page: list[dict[str, Any]]) -> bool:
    return any(each["question"] == "WhyNotLeader" and not each["holds"] for each in page)


def is_ill(each: dict[str, Any], *, is_led: bool) -> bool:
    """Say whether an explanation tells of something wrong, and not of daily work."""
    if not each["holds"] or each["clause"] in _DAILY:
        return False
    return each["question"] != "WhyNotLeader" or not is_led


def first_causes(page: list[dict[str, Any]], *, is_led: bool) -> Iterator[dict[str, Any]]:
    """Give what is wrong on one node, each cause once: a full disk is no lack of credits too."""
    ills = {each["question"]: each for each in page if is_ill(each, is_led=is_led)}
    told: set[str] = set()
    for question in _BY_CAUSE:
        each = ills.get(question)
        if each is None or _FOLLOWS_FROM.get(question, frozenset()) & told:
            continue
        if each["clause"] == "Failed" and "Failed" in told:
            continue
        told |= {question, each["clause"]}
        yield each


def _group_wrong(answers: dict[int, list[dict[str, Any]]]) -> Iterator[bool]:
    is_led = any(map(_leads, answers.values()))
    yield not is_led
    for page in answers.values():
        for each in page:
            yield is_ill(each, is_led=is_led)


def group_lines(group: int, answers: dict[int, list[dict[str, Any]]]) -> Iterator[str]:
    """Give the sentences about one group: who leads, and whatever holds on any node."""
    leaders = [node for node, page in answers.items() if _leads(page)]
    ills = [
        (node, each)
        for node, page in answers.items()
        for each in first_causes(page, is_led=bool(leaders))
    ]
    who = f"node {leaders[-1]} leads" if leaders else "nobody leads"
    yield f"group {group}: {who}{'' if ills or not leaders else ', and nothing is wrong'}"
    for node, each in ills:
        yield f"  node {node}: {each['question']}: {each['sentence']}"
        if each["remedy"]:
            yield f"    → {pasteable(each['remedy'])}"
    if leaders and not ills:
        admitted = (each for each in answers[leaders[-1]] if each["question"] == "WhyCreditZero")
        yield from (f"  node {leaders[-1]}: {each['sentence']}" for each in admitted)
