"""The table at the end of `make test`."""

from __future__ import annotations

from tools.slowest import slowest

UNITS = """<testsuites><testsuite name="units">
<testcase classname="tests.a" name="quick" time="0.01" />
<testcase classname="tests.a" name="long[1]" time="3.5" />
</testsuite></testsuites>"""
REAL = """<testsuites><testsuite name="real">
<testcase classname="tests.b" name="cluster" time="12" />
<testcase classname="tests.a" name="long[2]" time="2"><failure>no</failure></testcase>
<testcase classname="tests.a" name="long[2]" time="2"><error>nor its end</error></testcase>
</testsuite></testsuites>"""


def test_the_slowest_of_all_parts_stand_in_one_table() -> None:
    assert slowest([UNITS, REAL], 3) == [
        (12.0, "tests.b::cluster"),
        (4.0, "tests.a::long[2]"),
        (3.5, "tests.a::long[1]"),
    ]


def test_nothing_ran() -> None:
    assert slowest([]) == []
