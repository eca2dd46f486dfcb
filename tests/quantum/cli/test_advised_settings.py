"""No explanation advises a setting that `quantum config explain` does not know."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from types import ModuleType

import pytest
from typer.testing import CliRunner

from clustor.telemetry import explaining, explaining_credits, explaining_mode
from quantum.cli import broker, doctor_checks, why
from quantum.cli.config import app
from quantum.cli.config_layers import CLUSTER_FILE_KEYS, QUOTA_NAMES, knows
from quantum.config import NAMES
from quantum.config.live import LIVE_KEYS
from quantum.node import access_page
from quantum.node import client_causes as telemetry_why
from quantum.node.client_causes import ClientFacts, explain_client
from quantum.tenancy import Rate

SPEAKERS = (
    explaining,
    explaining_credits,
    explaining_mode,
    telemetry_why,
    access_page,
    broker,
    doctor_checks,
    why,
)
NOT_SETTINGS = re.compile(r"quantum |ulimit |make |GET |POST |-?-")
LOOKS_LIKE_ONE = re.compile(
    r"\b(?:raise|lower|set|take|change) (?:the )?`?([a-z_]+(?:[._][a-z_]+)+)"
)


def strings(module: ModuleType) -> Iterator[str]:
    """Give the texts of a module that are no docstrings."""
    tree = ast.parse(inspect.getsource(module))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def advised(text: str) -> Iterator[str]:
    for quoted in re.findall(r"`([^`]+)`", text):
        if not NOT_SETTINGS.match(quoted):
            yield quoted
    yield from LOOKS_LIKE_ONE.findall(text)


@pytest.mark.parametrize("module", SPEAKERS, ids=lambda each: each.__name__)
def test_what_a_text_advises_is_known(module: ModuleType) -> None:
    found = {each for text in strings(module) for each in advised(text)}
    assert not {each for each in found if not knows(each)}


def test_the_look_finds_what_it_looks_for() -> None:
    assert list(advised("send less, or raise rates.publishes")) == ["rates.publishes"]
    assert "queue_messages_max" in {
        each for text in strings(telemetry_why) for each in advised(text)
    }
    assert not knows("rates.nothing")


@pytest.mark.parametrize("rate", list(Rate))
@pytest.mark.parametrize("scope", ["tenant", "connection"])
def test_the_rate_that_is_advised_is_the_one_that_holds(scope: str, rate: Rate) -> None:
    facts = ClientFacts("c", "t", 0, 1, 1, True, True, True, is_connected=True)  # noqa: FBT003
    facts.rates = [(scope, rate.value, 5)]
    remedy = explain_client(facts)[0].remedy
    prefix = "connection_rates" if scope == "connection" else "rates"
    assert set(advised(remedy)) == {f"{prefix}.{rate.value}"}
    assert knows(f"{prefix}.{rate.value}")


@pytest.mark.parametrize(
    "key", sorted({*NAMES, *LIVE_KEYS, *QUOTA_NAMES, *CLUSTER_FILE_KEYS, "queue-messages-max"})
)
def test_config_explain_knows_each_and_says_how_to_change_it(key: str) -> None:
    result = CliRunner().invoke(app, ["explain", key, "--admin", "127.0.0.1:1"])
    assert result.exit_code == 0, result.output
    assert f"{key} is " in result.output
    assert "change it " in result.output
