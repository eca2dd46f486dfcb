"""The book's programs and the commands of its first page, on one broker that they share.

Java, Go and Rust are built with libraries of their registries, which takes minutes the first time:
they are run with QUANTUM_EXAMPLES=all.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.interop.broker_process import BrokerProcess
from tests.interop.stock_mqttjs import package

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
EXAMPLES: Final = DOCS / "examples"
FIRST_PAGE: Final = DOCS / "getting-started.md"
RUN_SECONDS: Final = 300
BUILD_SECONDS: Final = 800
BUILT: Final = {
    "java": ("mvn", "-q", "compile", "exec:java", "-Dexec.mainClass=Hello", "-Dexec.args={port}"),
    "go": ("go", "run", ".", "{port}"),
    "rust": ("cargo", "run", "--quiet", "--", "{port}"),
}
_SHOWN: Final = re.compile(r"<!-- run -->\n```sh\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("book") / "var", partitions=1) as running:
        yield running


def run(
    *command: str,
    seconds: float = RUN_SECONDS,
    place: Path = ROOT,
    environment: Mapping[str, str] = os.environ,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def said_by(
    *command: str,
    seconds: float = RUN_SECONDS,
    place: Path = ROOT,
    environment: Mapping[str, str] = os.environ,
) -> str:
    done = run(*command, seconds=seconds, place=place, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_python_program_runs(broker: BrokerProcess) -> None:
    program = EXAMPLES / "python" / "hello.py"
    assert said_by(sys.executable, str(program), str(broker.mqtt)) == "hello/python from Python\n"


def test_the_javascript_program_runs(broker: BrokerProcess) -> None:
    found = package()
    if isinstance(found, str):
        pytest.skip(found)
    program = EXAMPLES / "javascript" / "hello.js"
    said = said_by(
        "node",
        str(program),
        str(broker.mqtt),
        environment=os.environ | {"NODE_PATH": str(found.parent)},
    )
    assert said == "hello/javascript from JavaScript\n"


def test_the_c_program_runs(broker: BrokerProcess, tmp_path: Path) -> None:
    if shutil.which("cc") is None or not Path("/usr/include/mosquitto.h").exists():
        pytest.skip("a C compiler and libmosquitto-dev are not installed")
    program = tmp_path / "hello"
    said_by("cc", str(EXAMPLES / "c" / "hello.c"), "-lmosquitto", "-o", str(program))
    assert said_by(str(program), str(broker.mqtt)) == "hello/c from C\n"


@pytest.mark.parametrize("language", BUILT)
def test_the_program_that_has_to_be_built_runs(
    broker: BrokerProcess, tmp_path: Path, language: str
) -> None:
    command = [part.format(port=broker.mqtt) for part in BUILT[language]]
    if os.environ.get("QUANTUM_EXAMPLES") != "all":
        pytest.skip("it takes libraries of a registry: QUANTUM_EXAMPLES=all builds and runs it")
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    place = tmp_path / language
    shutil.copytree(EXAMPLES / language, place)
    said = said_by(*command, seconds=BUILD_SECONDS, place=place)
    assert said.splitlines()[-1] == f"hello/{language} from {language.capitalize()}"


def test_the_first_page_does_what_it_shows(broker: BrokerProcess) -> None:
    """Every command of its marked blocks ends with 0, and every line of output shown is said."""
    found = _SHOWN.findall(FIRST_PAGE.read_text())
    assert len(found) >= 2
    for commands, shown in found:
        script = here(commands, broker)
        deadline = time.monotonic() + RUN_SECONDS
        while missing := missing_of(script, shown, broker):
            assert time.monotonic() < deadline, missing


def missing_of(script: str, shown: str, broker: BrokerProcess) -> str:
    """Say what of the page did not come true this time; a busy node may answer a command late."""
    done = run("bash", "-eo", "pipefail", "-c", script, environment=everywhere(broker))
    lines = [line for line in shown.splitlines() if line not in done.stdout]
    if done.returncode == 0 and not lines:
        return ""
    said = f"{done.stdout}{done.stderr}"
    return f"{lines} is not in what these said ({done.returncode}):\n{script}\n{said}"


def test_the_page_of_metrics_names_what_a_node_has(tmp_path: Path) -> None:
    """A counter or a histogram is named without what its series add; the node makes backups."""
    named = set(re.findall(r"\b(?:quantum|clustor)_[a-z_]+", (DOCS / "monitoring.md").read_text()))
    archive = (tmp_path / "archive").as_uri()
    with (
        BrokerProcess(
            tmp_path / "var", partitions=1, archive=archive, backup_seconds=3_600
        ) as broker,
        urllib.request.urlopen(f"http://{broker.admin}/metrics", timeout=RUN_SECONDS) as answer,
    ):
        families = set(re.findall(r"^# TYPE (\S+)", answer.read().decode(), re.MULTILINE))
    assert len(named) > 10
    assert named - families == set()


def here(commands: str, broker: BrokerProcess) -> str:
    """Return the commands for this broker's port, without mosquitto's where it is not there."""
    lines = commands.splitlines()
    if shutil.which("mosquitto_pub") is None:
        lines = [line for line in lines if not line.startswith("mosquitto_")]
    ported = (re.sub(r"^(quantum (?:pub|sub)|mosquitto_\w+) ", _to(broker), line) for line in lines)
    return "\n".join(ported)


def _to(broker: BrokerProcess) -> str:
    return rf"\1 -p {broker.mqtt} "


def everywhere(broker: BrokerProcess) -> dict[str, str]:
    return os.environ | {
        "QUANTUM_ADMIN": str(broker.admin),
        "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
    }
