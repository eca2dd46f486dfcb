"""What tests with real processes share: brokers to meet, and room that is given back."""

from __future__ import annotations

import gc
import shutil
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from clustor.runtime.admin.caller import NOBODY
from quantum.cli.credentials import speak_as
from tests.interop import forked
from tests.interop.mqtt_places import PLACES, Place

HERE: Final = Path(__file__).parent
TIMEOUT_SECONDS: Final = 900
"""For whole clusters on a machine that is busy with something else; each wait in a test has a
deadline of its own, which says what it waited for."""

JUDGED_BY_TIME: Final = frozenset(
    {
        "test_edge_inputs",
        "test_fuzz_listeners",
        "test_half_open",
        "test_load_is_no_fault",
        "test_mqtt_failover",
        "test_one_turn_is_bounded",
    }
)
"""What measures how long somebody waited has the machine to itself."""

EXECUTED: Final = frozenset(
    {
        "test_book",
        "test_cluster",
        "test_deploy",
        "test_golden_directory",
        "test_kafka_cluster",
        "test_mqtt_torture",
        "test_node_process",
        "test_packages",
        "test_rotation",
        "test_service_manager",
        "test_starts_everywhere",
        "test_streams_killed",
        "test_up",
        "test_wills_real",
    }
)
"""Where every process is executed, as users' are: how one starts is the subject, or that nodes
agree whatever the seeds of their hashes are."""

forked.install()

LONGEST: Final = (
    "test_lake",
    "test_cluster",
    "test_control_plane",
    "test_lake_connect",
    "test_members",
    "test_mqtt_restart",
    "test_lake_standalone",
    "test_office",
    "test_placed_moves",
    "test_lake_stream",
    "test_mqtt_torture",
    "test_mqtt_replay",
    "test_identity",
    "test_archive",
)
"""These files begin first, so that at the end no process waits for one that began last;
what works all the time stands between what waits."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give whole clusters the time that they may need, and let a broker's tests stand in a row."""
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))
        if item.path.stem in JUDGED_BY_TIME:
            item.add_marker(pytest.mark.quiet)
    rank = {stem: nth for nth, stem in enumerate(LONGEST)}
    items.sort(key=lambda item: (rank.get(item.path.stem, len(LONGEST)), place_of(item) or "~"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Say before a test's fixtures are made how its processes begin."""
    forked.ForkingPopen.forks = item.path.stem not in EXECUTED


def place_of(item: pytest.Item | None) -> str | None:
    """Name the shared broker that a test meets, if it meets one."""
    call = getattr(item, "callspec", None)
    return None if call is None else call.params.get("place")


@pytest.fixture(autouse=True, scope="session")
def _server_of_forks_ends() -> Iterator[None]:
    yield
    forked.end_server()


@pytest.fixture(autouse=True)
def _speaks_for_nobody() -> Iterator[None]:
    """Commands run in this process: as whom one of them spoke is forgotten with its test."""
    yield
    speak_as(NOBODY)


@pytest.fixture(autouse=True)
def _gives_room_back(tmp_path: Path) -> Iterator[None]:
    """Clusters reserve room for their logs; what their nodes said is kept."""
    yield
    for state in list(tmp_path.rglob("state")):
        shutil.rmtree(state, ignore_errors=True)


class SharedPlaces:
    """Brokers that many tests meet, one at a time: each ends when the next test meets another.

    A fixture of the session would keep all of them until the very end, and brokers at rest cost.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._open: dict[str, Place] = {}

    def meet(self, name: str, directory: Path) -> Place:
        if name not in self._open:
            self._open[name] = self._stack.enter_context(PLACES[name](directory))
        return self._open[name]

    def close(self) -> None:
        self._open.clear()
        self._stack.close()


shared_places: Final = SharedPlaces()


@pytest.fixture(params=PLACES, ids=lambda name: name.replace(" ", "-"))
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A broker for all tests that need no broker of their own."""
    return shared_places.meet(request.param, tmp_path_factory.mktemp("place") / "var")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End a shared broker after the last test in a row that meets it."""
    if place_of(item) is not None and place_of(nextitem) != place_of(item):
        shared_places.close()


@pytest.fixture(autouse=True)
def _proton_lets_go(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect what Proton's clients leave behind: it never closes the socket of a lost connection.

    Python would complain of it in the middle of whatever test comes later.
    """
    yield
    if "amqp" in request.node.nodeid:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
