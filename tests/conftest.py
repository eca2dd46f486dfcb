"""What all tests share: the compiled modules are fresh, and no test is judged by its speed."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import hypothesis
import pytest

from clustor.runtime.containment import contained
from tools import compile_hot

# How long an example takes is the machine's affair: a test judges what comes out.
hypothesis.settings.register_profile(
    "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")

# Every JVM of the suite lives for seconds: its second compiler, and its look at Spark's classes
# before it trusts them, cost more than they give back.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+IgnoreUnrecognizedVMOptions "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)

# Brokers that tests start take any free port for Kafka, where nobody says which.
os.environ.setdefault("QUANTUM_KAFKA", "127.0.0.1:0")


@pytest.fixture(autouse=True)
def _environment_stays() -> Iterator[None]:
    """A command says to its children as whom it speaks: in this process that is for one test."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(autouse=True)
def _nothing_is_contained(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of our own in this process fails its test, though a node would live on."""
    monkeypatch.setattr(contained, "raising", True)


class _PlainSources(MetaPathFinder):
    """Find the hot modules' sources where their compiled twins would be found first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in compile_hot.hot_modules():
            return None
        return importlib.util.spec_from_file_location(fullname, compile_hot.source_of(fullname))


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("QUANTUM_PURE"):
        sys.meta_path.insert(0, _PlainSources())
    elif compile_hot.STAMP.exists() and compile_hot.STAMP.read_text() != compile_hot.digest():
        raise pytest.UsageError(
            "the compiled hot modules are older than their sources: make compile"
        )
