"""What finding costs: subscribers of a topic, retained topics of a filter, an access decision.

    python -m bench.topics [--count 1000000]

Each row is filled and asked in a process of its own. Beside each question stands its naive twin
(the rules applied to every entry), asked in the same process. Times are CPU time per question;
bytes are resident memory per entry, the entry's own name among them.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import random
import resource
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table

from quantum.routing.retained import RetainedIndex
from quantum.routing.trie import SubscriptionTrie
from quantum.tenancy import AclRule, Effect, Principal, ResourceKind, any_of, compile_acl
from quantum.topics import matches
from quantum.types import ClientId

ASKED = 20_000
BOTH = any_of(ResourceKind.TOPIC)
SITES = 1_000
PAGES = 50

FILTERS: dict[str, Callable[[int], bytes]] = {
    "exact": lambda number: b"site/%d/device/%d/cmd" % (number % SITES, number),
    "+ at the end": lambda number: b"site/%d/device/%d/+" % (number % SITES, number),
    "+ within": lambda number: b"site/+/device/%d/cmd" % number,
    "#": lambda number: b"site/%d/device/%d/#" % (number % SITES, number),
}
MIXED = "a quarter of each"
CROWDED = "100 on each +"
RETAINED = (b"a/b/#", b"site7/+/temp", b"+/7/temp", b"+/x/#", b"+/b/#", b"#")
KINDS = (b"temp", b"volt", b"rssi", b"hum", b"state")


@dataclass
class Row:
    """One line of the report."""

    name: str
    cells: list[str]


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def cpu_us(work: Callable[[], object], times: int) -> float:
    """CPU time of one of so many, in microseconds."""
    begin = time.process_time()
    work()
    return (time.process_time() - begin) / times * 1e6


def drain(items: Iterable[object]) -> None:
    for _ in items:
        pass


def filter_of(mix: str, number: int) -> bytes:
    if mix == CROWDED:
        return b"site/%d/device/+/cmd" % (number // 100)
    if mix == MIXED:
        return list(FILTERS.values())[number % 4](number)
    return FILTERS[mix](number)


def measure_trie(mix: str, count: int) -> Row:
    trie: SubscriptionTrie[int, int] = SubscriptionTrie()
    subscribers = list(range(count))
    topics = [
        b"site/%d/device/%d/cmd" % (number % SITES, number)
        for number in random.Random(1).choices(subscribers, k=ASKED)
    ]
    gc.collect()
    before = resident_bytes()
    fill = cpu_us(lambda: drain(trie.add(filter_of(mix, n), n, 1) for n in subscribers), count)
    size = (resident_bytes() - before) / count
    found = sum(len(trie.match(topic)) for topic in topics) / ASKED
    cold = cpu_us(lambda: drain(map(trie.match, topics)), ASKED)
    filters = list(trie.filters())
    twin = cpu_us(lambda: [f for f in filters if matches(f, topics[0])], 1)
    return Row(
        mix,
        [
            f"{size:.0f}",
            f"{fill:.1f}",
            f"{found:.1f}",
            f"{cold:.1f}",
            f"{twin:,.0f}",
        ],
    )


def retained_name(number: int) -> bytes:
    return b"site%d/%d/%s" % (number % 100, number // 500, KINDS[number // 100 % 5])


def filled_retained(count: int) -> tuple[RetainedIndex[int], list[bytes], float, float]:
    names = [retained_name(number) for number in range(count - 1000)]
    names += [b"a/b/%d" % number for number in range(1000)]
    random.Random(1).shuffle(names)
    index: RetainedIndex[int] = RetainedIndex()
    gc.collect()
    before = resident_bytes()
    fill = cpu_us(lambda: drain(index.put(name, 1) for name in names), count)
    # The names were made before; each is held once more, as a key.
    return index, names, (resident_bytes() - before) / count, fill


def measure_retained(count: int) -> tuple[str, list[Row]]:
    index, names, size, fill = filled_retained(count)
    get = cpu_us(lambda: drain(map(index.get, names[:ASKED])), ASKED)
    title = f"{count:,} retained topics, {size:.0f} B each, put {fill:.1f} µs, get {get:.2f} µs"
    return title, [measure_lookup(index, names, topic_filter) for topic_filter in RETAINED]


def measure_lookup(index: RetainedIndex[int], names: list[bytes], topic_filter: bytes) -> Row:
    page = index.match_after(topic_filter, b"", 100)
    first = cpu_us(
        lambda: drain(index.match_after(topic_filter, b"", 100) for _ in range(PAGES)), PAGES
    )
    found: list[tuple[bytes, int]] = []
    whole = cpu_us(lambda: found.extend(index.match(topic_filter)), 1)
    twin = cpu_us(lambda: [name for name in names if matches(topic_filter, name)], 1)
    cells = [
        f"{len(page.matches)}",
        f"{first:,.0f}",
        f"{len(found):,}",
        f"{whole / 1e3:,.1f}",
        f"{twin / 1e3:,.0f}",
    ]
    return Row(topic_filter.decode(), cells)


def measure_acl(count: int) -> Row:
    rules = [AclRule(Effect.ALLOW, BOTH, b"site/%d/+/x" % number) for number in range(count)] + [
        AclRule(Effect.DENY, BOTH, b"site/+/%d/secret" % number) for number in range(count // 10)
    ]
    compiled = compile_acl(rules)
    who, client = Principal("someone"), ClientId(b"client")
    numbers = random.Random(1).choices(range(count), k=ASKED)
    topics = [b"site/%d/device/x" % number for number in numbers]
    filters = [b"site/%d/+/x" % number for number in numbers]
    publish = [
        cpu_us(lambda: drain(compiled.check_publish(who, client, t) for t in topics), ASKED)
        for _ in range(2)
    ]
    subscribe = [
        cpu_us(lambda: drain(compiled.check_subscribe(who, client, f) for f in filters), ASKED)
        for _ in range(2)
    ]
    twin = cpu_us(lambda: [rule for rule in rules if matches(rule.pattern, topics[0])], 1)
    return Row(
        f"{len(rules):,}",
        [f"{us:.1f}" for us in (*publish, *subscribe)] + [f"{twin:,.0f}"],
    )


def print_rows(title: str, headings: list[str], rows: list[Row]) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column(headings[0])
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(row.name, *row.cells)
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    count: int = parser.parse_args().count
    fresh = ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1)
    with fresh as pool:
        mixes = [*FILTERS, MIXED, CROWDED]
        rows = list(pool.map(measure_trie, mixes, itertools.repeat(count)))
        print_rows(
            f"{count:,} subscriptions",
            ["filters", "B each", "add µs", "found", "match µs", "naive µs"],
            rows,
        )
        title, rows = pool.submit(measure_retained, count).result()
        print_rows(title, ["filter", "page of 100", "µs", "all", "ms", "naive ms"], rows)
        rows = list(pool.map(measure_acl, (10, 1_000, 100_000)))
        print_rows(
            "Access decisions",
            ["rules", "publish µs", "again", "subscribe µs", "again", "naive publish µs"],
            rows,
        )


if __name__ == "__main__":
    main()
