"""Every numbered statement of chapters 3 and 4 that concerns a server is named by a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.quantum.mqtt.refusals import ALLOWED_CODES, FROM_A_SERVER, REFUSED

HERE = Path(__file__).parent
CODEC = HERE.parent / "mqtt"


def counts(text: str) -> dict[str, int]:
    """Read `section:number of its statements`."""
    pairs = (each.split(":") for each in text.split())
    return {section: int(count) for section, count in pairs}


MQTT_5 = counts(
    """
    3.1.0:2 3.1.2:30 3.1.3:12 3.1.4:6 3.2.0:2 3.2.2:22 3.3.1:13 3.3.2:20 3.3.4:10 3.4.2:3
    3.5.2:3 3.6.1:1 3.6.2:3 3.7.2:3 3.8.1:1 3.8.3:5 3.8.4:8 3.9.2:2 3.9.3:2 3.10.1:1 3.10.3:2
    3.10.4:6 3.11.2:2 3.11.3:2 3.12.4:1 3.14.0:1 3.14.1:1 3.14.2:4 3.14.4:3 3.15.1:1 3.15.2:3
    4.1.0:2 4.3.1:1 4.3.2:5 4.3.3:13 4.4.0:2 4.5.0:2 4.6.0:6 4.7.0:1 4.7.1:2 4.7.2:1 4.7.3:4
    4.8.2:6 4.9.0:3 4.12.0:7 4.12.1:2 4.13.1:1 4.13.2:1
    """
)
MQTT_3_1_1 = counts(
    """
    3.1.0:2 3.1.2:24 3.1.3:11 3.1.4:5 3.2.0:1 3.2.2:6 3.3.1:12 3.3.2:3 3.3.5:2 3.6.1:1 3.8.1:1
    3.8.3:4 3.8.4:6 3.9.3:2 3.10.1:1 3.10.3:2 3.10.4:6 3.12.4:1 3.14.1:1 3.14.4:3 4.1.0:2
    4.3.1:1 4.3.2:2 4.3.3:2 4.4.0:1 4.5.0:2 4.6.0:6 4.7.1:3 4.7.2:1 4.7.3:4 4.8.0:2
    """
)

# What only a client can keep, and what rests on an ability that this server has throughout.
NOT_OURS_5 = {
    "3.1.2-20": "a client pings",
    "3.2.2-4": "a client without state closes",
    "3.2.2-5": "a client discards its state",
    "3.2.2-9": "this server has every QoS",
    "3.2.2-10": "this server has every QoS",
    "3.2.2-11": "a client keeps to the maximum QoS",
    "3.2.2-12": "this server has every QoS",
    "3.2.2-13": "this server retains",
    "3.2.2-14": "a client keeps to what is available",
    "3.2.2-18": "this server always announces an alias maximum",
    "4.5.0-2": "a client acknowledges",
}
NOT_OURS_3_1_1 = {
    "3.1.2-23": "a client pings",
    "3.8.3-2": "this server has wildcards",
    "3.14.4-1": "a client closes",
    "3.14.4-2": "a client sends no more",
    "4.5.0-2": "a client acknowledges",
}

_ID = re.compile(r"\[MQTT-(\d+\.\d+\.\d+-\d+)\]")
_SPAN = re.compile(r"\[MQTT-(\d+\.\d+\.\d+)-(\d+)\] to \[MQTT-\1-(\d+)\]")


def named(standard: str) -> set[str]:
    """Collect the statements that tests name; those of 3.1.1 stand behind its number."""
    found: set[str] = set()
    lines = [f"{each}" for each in (*REFUSED, *ALLOWED_CODES, *FROM_A_SERVER)]
    for path in (*HERE.glob("test_section_*.py"), HERE / "test_bad_input.py"):
        lines += path.read_text().splitlines()
    for path in CODEC.glob("test_*.py"):
        lines += path.read_text().splitlines()
    for line in lines:
        for part in line.split(";"):
            if ("3.1.1" in _ID.sub("", part)) == (standard == "3.1.1"):
                found.update(_ID.findall(part))
                for section, first, last in _SPAN.findall(part):
                    found.update(f"{section}-{n}" for n in range(int(first), int(last) + 1))
    return found


@pytest.mark.parametrize(
    ("standard", "sections", "not_ours"),
    [("5.0", MQTT_5, NOT_OURS_5), ("3.1.1", MQTT_3_1_1, NOT_OURS_3_1_1)],
    ids=["5.0", "3.1.1"],
)
def test_every_statement_has_a_test(
    standard: str, sections: dict[str, int], not_ours: dict[str, str]
) -> None:
    every = {f"{name}-{n}" for name, count in sections.items() for n in range(1, count + 1)}
    assert set(not_ours) <= every
    assert sorted(every - named(standard) - set(not_ours)) == []
