"""Selectors of JMS: a condition over a message's head, read once, asked often, bounded always."""

from quantum.protocols.amqp.selectors.facts import MessageFacts
from quantum.protocols.amqp.selectors.parsing import (
    DEPTH_MAX,
    SELECTOR_CHARS_MAX,
    Selector,
    parse_selector,
)
from quantum.protocols.amqp.selectors.tokens import SelectorError

__all__ = [
    "DEPTH_MAX",
    "SELECTOR_CHARS_MAX",
    "MessageFacts",
    "Selector",
    "SelectorError",
    "parse_selector",
]
