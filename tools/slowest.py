"""Print the slowest tests of several runs of pytest as one table: `python tools/slowest.py DIR`."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

SHOWN: Final = 20


def slowest(reports: list[str], shown: int = SHOWN) -> list[tuple[float, str]]:
    """Return the seconds and the names of the slowest tests of JUnit reports, slowest first.

    A test that failed and whose end failed too stands in a report twice: it is one test here.
    """
    found: list[tuple[float, str]] = []
    for report in reports:
        seconds: dict[str, float] = {}
        for case in ET.fromstring(report).iter("testcase"):
            name = f"{case.get('classname')}::{case.get('name')}"
            seconds[name] = seconds.get(name, 0.0) + float(case.get("time", "0"))
        found += [(took, name) for name, took in seconds.items()]
    return sorted(found, reverse=True)[:shown]


def main(directory: Path) -> None:
    reports = [path.read_text() for path in sorted(directory.glob("*.xml"))]
    print(f"The {SHOWN} slowest tests, with what was made for them and taken down:")
    for took, name in slowest(reports):
        print(f"{took:8.1f} s  {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
