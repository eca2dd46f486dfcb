"""The documentation does what it says: its examples run, and the tests that it names exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slipstream.servers import NatsServer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/slipstream.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SESSION = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)


def environment(server: NatsServer) -> dict[str, str]:
    where = {"SLIPSTREAM_BACKEND": server.url, "SLIPSTREAM_BUCKET": f"docs-{os.getpid()}"}
    return {**os.environ, **where, "PYTHONPATH": str(ROOT / "src")}


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(nats_server: NatsServer, tmp_path: Path, number: int) -> None:
    source = EXAMPLES[number].replace("nats://127.0.0.1:4222", nats_server.url)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        cwd=tmp_path,
        env=environment(nats_server),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_session_is_what_the_command_says(nats_server: NatsServer, tmp_path: Path) -> None:
    (session,) = SESSION
    said: list[str] = []
    for line in session.splitlines():
        if not line.startswith("$ "):
            continue
        _, *words = shlex.split(line[2:])
        done = subprocess.run(
            [sys.executable, "-m", "slipstream.cli", *words],
            cwd=tmp_path,
            env=environment(nats_server),
            capture_output=True,
            text=True,
        )
        said += [line, *(done.stdout + done.stderr).splitlines()]
    assert said == session.splitlines()


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 15
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(), (path, name)


@pytest.mark.parametrize(
    ("module", "use", "extra"),
    [
        ("nats", "slipstream.NatsConnection", "nats"),
        ("rocksdict", "slipstream.RocksDbSnapshot.load('fold')", "rocksdb"),
    ],
)
def test_a_missing_extra_is_named_and_the_rest_works(
    tmp_path: Path, module: str, use: str, extra: str
) -> None:
    source = f"""
import sys
sys.modules[{module!r}] = None
import slipstream
from slipstream.errors import MissingExtra
try:
    {use}
except MissingExtra as error:
    assert error.facts == {{"extra": {extra!r}}}
    assert "quantum-mq[{extra}]" in str(error)
else:
    raise SystemExit("it was there")
"""
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_base_import_is_light() -> None:
    heavy = "('nats', 'rocksdict', 'obstore', 'typer', 'rich', 'numpy')"
    source = f"import sys, slipstream; print([name for name in {heavy} if name in sys.modules])"
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", source], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
