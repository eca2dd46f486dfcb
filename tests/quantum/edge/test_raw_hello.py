"""What strangers say first, byte by byte."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest

from clustor.runtime.telemetry.journal import TextFormatter
from quantum.edge.errors import ClientRefused, TenantUnknown
from tests.quantum.edge.raw_hello import hello
from tests.quantum.edge.recording import Handlers, rest_of
from tests.quantum.edge.test_tls import serving

FORGED = b"x\n2031-01-01 00:00:00,000 FORGED all is well\x1b[2J"


async def test_a_server_name_is_told_in_one_line(tmp_path: Path) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter("%(message)s"))
    journal = logging.getLogger("quantum.edge")
    journal.addHandler(handler)
    told: list[object] = []
    try:
        async with serving(tmp_path, Handlers()) as (listener, connect):
            listener.lobby.on_refusal = lambda _address, why: told.append(why)
            reader, writer = await connect()
            writer.write(hello(FORGED))
            await rest_of(reader)
    finally:
        journal.removeHandler(handler)
    (why,) = told
    assert isinstance(why, TenantUnknown)
    assert "FORGED" in stream.getvalue() and "\x1b" not in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize(("padding", "why"), [(0, None), (60_000, "its first words are too long")])
async def test_first_words_have_a_length(tmp_path: Path, padding: int, why: str | None) -> None:
    told: list[object] = []
    async with serving(tmp_path, Handlers()) as (listener, connect):
        listener.lobby.on_refusal = lambda _address, why: told.append(why)
        reader, writer = await connect()
        writer.write(hello(b"localhost", padding=padding))
        if why is None:
            assert (await reader.readexactly(6))[5] == 2, "a ServerHello"
        else:
            await rest_of(reader)
            (refusal,) = told
            assert isinstance(refusal, ClientRefused) and refusal.reason == why
