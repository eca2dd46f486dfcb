"""All stock libraries, and the fixture through which a test opens their clients."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.interop.mqtt_places import Place
from tests.interop.stock_aiomqtt import Aiomqtt
from tests.interop.stock_client import DEADLINE_SECONDS, Can, Library, Opening, StockClient
from tests.interop.stock_gmqtt import Gmqtt
from tests.interop.stock_mqttjs import MqttJs, package
from tests.interop.stock_paho import Paho

NOTHING = Can(0)
_rooms = itertools.count()
LIBRARIES: tuple[type[Library], ...] = (Paho, Aiomqtt, Gmqtt, MqttJs)


class Room:
    """Opens clients of one library at one place, and closes them with the test."""

    def __init__(self, library: Library, place: Place, test: str) -> None:
        self.library = library
        self.place = place
        self.topic = test
        """Nobody else publishes below this."""
        self._clients: list[StockClient] = []

    def opening(self, name: str, **how: object) -> Opening:
        """Name a client of this test; it reaches the node that is near."""
        opening = Opening(f"{self.topic}-{name}", self.place.near.mqtt)
        return replace(opening, **how)  # type: ignore[arg-type]

    async def near(self, name: str, **how: object) -> StockClient:
        return await self.open(self.opening(name, **how))

    async def far(self, name: str, **how: object) -> StockClient:
        """Connect to another node than `near`, where there is one."""
        return await self.open(self.opening(name, **{"port": self.place.far.mqtt, **how}))

    async def open(self, opening: Opening) -> StockClient:
        client = await self.library.open(opening)
        self._clients.append(client)
        return client

    async def until_gone(self, name: str) -> None:
        """Wait until the broker has no session of a client: its DISCONNECT takes another way
        than what it does at another node."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await asyncio.to_thread(self.place.knows_session, f"{self.topic}-{name}"):
                await asyncio.sleep(0.01)

    async def until_away(self, name: str) -> None:
        """Wait until the broker knows that a client whose session is kept has gone."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not await asyncio.to_thread(self.place.is_away, f"{self.topic}-{name}"):
                await asyncio.sleep(0.01)

    async def shut(self) -> None:
        for client in self._clients:
            with suppress(Exception):  # many are gone already, each library says so in its own way
                await client.close()
        await self.library.shut()


def libraries(needs: Can = NOTHING) -> pytest.MarkDecorator:
    """Run a test with every library that can say and show what it needs."""
    able = [each for each in LIBRARIES if needs in each.can]
    return pytest.mark.parametrize("library", able, ids=lambda library: library.name)


@pytest.fixture
async def room(
    library: type[Library], place: Place, request: pytest.FixtureRequest
) -> AsyncIterator[Room]:
    if library is MqttJs and isinstance(missing := package(), str):
        pytest.skip(missing)
    counted = f"{request.node.nodeid.encode().hex()[-8:]}-{next(_rooms)}"  # another one each time
    room = Room(library(), place, f"{request.node.originalname}-{library.name}-{counted}")
    yield room
    await room.shut()
