"""Selectors: what they mean by the book and by a second evaluator, and what they cost at worst."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quantum.broker.queues import QueueEntry
from quantum.protocols.amqp.engine import Symbol, ULong
from quantum.protocols.amqp.engine.composites import MessageHeader, MessageProperties
from quantum.protocols.amqp.engine.fields import encode_composite
from quantum.protocols.amqp.engine.messages import MessageSection, encode_data, encode_section
from quantum.protocols.amqp.selectors import (
    DEPTH_MAX,
    SELECTOR_CHARS_MAX,
    MessageFacts,
    SelectorError,
    parse_selector,
)
from quantum.protocols.amqp.selectors.like import LikePattern, split_pattern
from tests.quantum.protocols.amqp.selectors.naive import (
    FACTS,
    TREES,
    is_bad_escape,
    text_of,
    value_of,
)


class Facts(dict[str, Any]):
    def __missing__(self, _name: str) -> None:
        return None


def accepts(text: str, **facts: Any) -> bool:
    return parse_selector(text).accepts(Facts(facts))


@settings(max_examples=1_500, deadline=None)
@given(tree=TREES, facts=FACTS)
def test_two_evaluators_agree(tree: Any, facts: dict[str, Any]) -> None:
    assume(not is_bad_escape(tree))
    expected = value_of(tree, facts) is True
    assert parse_selector(text_of(tree)).accepts(Facts(facts)) is expected, text_of(tree)


@settings(max_examples=500, deadline=None)
@given(text=st.text(alphabet="ab%_", max_size=8), pattern=st.text(alphabet="ab%_", max_size=8))
def test_like_is_what_a_regular_expression_says(text: str, pattern: str) -> None:
    tree = ("like", ("value", text), pattern, False, "")
    parts = split_pattern(pattern, "")
    assert parts is not None
    assert LikePattern(parts).matches(text) is value_of(tree, {})


@settings(max_examples=500, deadline=None)
@given(st.text(alphabet="ab '\"()<>=+-*/.,0139xeE%_$", max_size=40) | st.text(max_size=40))
def test_any_text_is_a_selector_or_a_selector_error(text: str) -> None:
    with suppress(SelectorError):
        parse_selector(text).accepts(Facts(a=1))


TRUE_OF = {
    "precedence": ("a = 1 OR b = 2 AND c = 3", {"a": 1}),
    "not binds tighter than and": ("NOT a = 1 AND b = 2", {"a": 2, "b": 2}),
    "sums": ("a + 2 * 3 = 7", {"a": 1}),
    "left to right": ("10 - 4 - 3 = 3 AND 24 / 4 / 2 = 3", {}),
    "towards zero": ("-7 / 2 = -3", {}),
    "between": ("age BETWEEN 15 AND 19", {"age": 19}),
    "not between": ("age NOT BETWEEN 15 AND 19", {"age": 20}),
    "in": ("Country IN ('UK', 'US', 'France')", {"Country": "UK"}),
    "not in": ("Country NOT IN (' UK', 'US')", {"Country": "Peru"}),
    "like phone": ("phone LIKE '12%3'", {"phone": "12993"}),
    "like one": ("word LIKE 'l_se'", {"word": "lose"}),
    "like escape": (r"u LIKE '\_%' ESCAPE '\'", {"u": "_foo"}),
    "not like": ("phone NOT LIKE '12%3'", {"phone": "1234"}),
    "is null": ("prop IS NULL", {}),
    "is not null": ("prop IS NOT NULL", {"prop": "x"}),
    "keywords in any case": ("a iS nOt nUlL aNd tRuE", {"a": 1}),
    "quote in a string": ("a = 'it''s'", {"a": "it's"}),
    "quoted name": ('"a b" = 1', {"a b": 1}),
    "boolean": ("flag", {"flag": True}),
    "hexadecimal, octal, long": ("0x1F = 31 AND 017 = 15 AND 5L = 5", {}),
    "reals": ("a > 1.5e0 AND a < 7. AND .5 < 1 AND 7E3 = 7000 AND 2f = 2", {"a": 2}),
    "smallest long": ("a = -9223372036854775808", {"a": -(2**63)}),
    "sign": ("a = +5 AND -a = -5", {"a": 5}),
}
NOT_TRUE_OF = {
    "like phone, too long": ("phone LIKE '12%3'", {"phone": "1234"}),
    "unlike types": ("a = '1'", {"a": 1}),
    "unlike types, unequal": ("a <> '1'", {"a": 1}),
    "a boolean is no number": ("a = 1", {"a": True}),
    "strings have no order": ("a < 'b'", {"a": "a"}),
    "nothing is unknown": ("NOT a = 1", {}),
    "nothing in": ("a NOT IN ('x')", {}),
    "by zero": ("1 / a = 1 OR 1 / a <> 1", {"a": 0}),
    "overflow": ("a * a > 0", {"a": 2**62}),
    "a number is no condition": ("a", {"a": 1}),
    "a word is no condition": ("NOT a", {"a": "x"}),
}


@pytest.mark.parametrize(("text", "facts"), TRUE_OF.values(), ids=TRUE_OF.keys())
def test_true(text: str, facts: dict[str, Any]) -> None:
    assert accepts(text, **facts)


@pytest.mark.parametrize(("text", "facts"), NOT_TRUE_OF.values(), ids=NOT_TRUE_OF.keys())
def test_not_true(text: str, facts: dict[str, Any]) -> None:
    assert not accepts(text, **facts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a =",
        "= 1",
        "a = 1 b",
        "(a = 1",
        "a = 1)",
        "a IN ()",
        "a IN (1)",
        "a IN ('x',)",
        "a LIKE b",
        "a LIKE 'x' ESCAPE 'xy'",
        "a LIKE 'ab' ESCAPE 'a'",
        "a BETWEEN 1",
        "a NOT = 1",
        "a IS 1",
        "a = 'open",
        "a = 09",
        "a = 12abc",
        "a = 9223372036854775808",
        "a ! b",
        "AND",
        '"" = 1',
    ],
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(SelectorError):
        parse_selector(text)


@pytest.mark.parametrize("piece", ["(", "NOT ", "- ", "+ "])
def test_depth_is_bounded(piece: str) -> None:
    closing = ")" if piece == "(" else ""
    parse_selector(piece * (DEPTH_MAX - 2) + "1" + closing * (DEPTH_MAX - 2))
    with pytest.raises(SelectorError, match="deeper"):
        parse_selector(piece * (DEPTH_MAX + 2) + "1" + closing * (DEPTH_MAX + 2))


def test_length_is_bounded_and_long_chains_are_no_deep_calls() -> None:
    text = " OR ".join(["a=1"] * ((SELECTOR_CHARS_MAX + 4) // 7))
    assert accepts(text, a=1)
    assert not accepts(text, a=2)
    with pytest.raises(SelectorError, match="at most"):
        parse_selector("a" * (SELECTOR_CHARS_MAX + 1))
    with pytest.raises(SelectorError, match="terms"):
        parse_selector("+".join("1" * 200) + " = 1")


def test_the_worst_pattern_costs_little() -> None:
    """A matcher that goes back would need longer than the universe has."""
    wild = parse_selector("a LIKE '" + "%a_" * 600 + "%c'")
    plain = parse_selector("a LIKE '" + "%a" * 1_000 + "%b%'")
    began = time.process_time()
    assert not wild.accepts(Facts(a="a" * 4_000))
    assert not wild.accepts(Facts(a="a" * 100_000 + "c")), "too long to be looked at"
    assert not plain.accepts(Facts(a="a" * 1_000_000))
    assert time.process_time() - began < 5.0


def message(**properties: object) -> bytes:
    header = encode_composite(MessageHeader(durable=True, priority=7))
    head = encode_composite(
        MessageProperties(message_id="ID:1", subject="kind", group_id="g", correlation_id=ULong(5))
    )
    named: dict[object, object] = dict(properties.items())
    said = encode_section(MessageSection.APPLICATION_PROPERTIES, named)
    return header + head + said + encode_data(b"body")


@pytest.mark.parametrize(
    "text",
    [
        "colour = 'blue' AND count = 3 AND share = 0.5 AND good",
        "JMSPriority = 7 AND JMSDeliveryMode = 'PERSISTENT'",
        "JMSMessageID = 'ID:1' AND JMSType = 'kind' AND JMSXGroupID = 'g'",
        "JMSCorrelationID = 5 AND JMSXDeliveryCount = 3 AND JMSRedelivered",
        "symbol = 'word' AND nothing IS NULL AND list IS NULL AND JMSReplyTo IS NULL",
    ],
)
def test_names_mean_parts_of_the_message(text: str) -> None:
    entry = QueueEntry(0, 1, 0, priority=7, failures=2)
    said = {"colour": "blue", "count": 3, "share": 0.5, "good": True, "symbol": Symbol("word")}
    payload = message(**said, list=[1])
    assert parse_selector(text).accepts(MessageFacts(entry, payload))


def test_a_message_that_cannot_be_read_says_nothing() -> None:
    facts = MessageFacts(QueueEntry(0, 1, 0), b"\xff\xff")
    assert not parse_selector("a = 1 OR a <> 1").accepts(facts)
    assert parse_selector("a IS NULL").accepts(facts)
