"""Serving the console: every header, every refusal, and that programs are answered as ever."""

from __future__ import annotations

import gzip
import hashlib
import http.client
from pathlib import Path
from typing import Final

import pytest

from clustor.runtime.admin.http import Request, Response, Text, respond
from clustor.runtime.peers.transport import Address
from quantum.admin import AdminPages
from quantum.console import (
    PAGE_ARCHIVE,
    PAGE_DIGEST,
    ConsolePage,
    is_of_console,
    pack_console,
)
from tests.clustor.control.plane import OBSERVER, OPERATOR, settled_plane
from tests.quantum.admin.certificates import certificate_of
from tests.quantum.admin.host import Host
from tests.quantum.admin.serving import served

STRANGER: Final = "spiffe://test/operator/mallory"
BROWSER: Final = {
    "host": "127.0.0.1:9080",
    "accept": "text/html,application/xhtml+xml,*/*;q=0.8",
    "accept-encoding": "gzip, deflate, br",
}
PAGE: Final = b"<html>" + b"<p>hello</p>" * 100
SCRIPT: Final = b"let a = 1;" * 100


@pytest.fixture
def place(tmp_path: Path) -> Path:
    files = {"index.html": PAGE, "app-1.js": SCRIPT, "small.txt": b"x"}
    packed = pack_console(files, "abc")
    (tmp_path / PAGE_ARCHIVE).write_bytes(packed)
    (tmp_path / PAGE_DIGEST).write_text(hashlib.sha256(packed).hexdigest())
    return tmp_path


async def ask(place: Path, target: str = "/", **headers: str) -> Response:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    found = await ConsolePage(place).answer(Request("GET", target, BROWSER | given))
    respond(found.code, found.content, found.headers)  # the port can say all of it
    return found


def body(found: Response) -> bytes:
    assert isinstance(found.content, Text)
    return found.content.body


@pytest.mark.parametrize(
    ("method", "target", "accept", "ours"),
    [
        ("GET", "/", "text/html,*/*", True),
        ("GET", "/?from=mail", "text/html", True),
        ("GET", "/console/app-1.js", "*/*", True),
        ("GET", "/console/", "", True),
        ("GET", "/", "*/*", False),  # curl
        ("GET", "/", "", False),
        ("GET", "/", "application/json", False),
        ("POST", "/", "text/html", False),
        ("GET", "/status", "text/html", False),
        ("GET", "/v1/nodes", "text/html", False),
        ("GET", "/consoles", "text/html", False),
    ],
)
def test_a_browser_gets_the_page_and_programs_what_they_got(
    method: str, target: str, accept: str, ours: bool
) -> None:
    assert is_of_console(Request(method, target, {"accept": accept})) is ours


async def test_the_page_says_what_it_may_do(place: Path) -> None:
    found = await ask(place)
    assert found.code == 200 and isinstance(found.content, Text)
    assert found.content.content_type == "text/html; charset=utf-8"
    policy = dict(each.strip().split(" ", 1) for each in _header(found, "policy").split(";"))
    assert policy == {
        "default-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data:",
        "connect-src": "'self' ws://127.0.0.1:* wss://127.0.0.1:*",
    }
    held = {name: value for name, value in found.headers.items() if "Policy" not in name}
    assert held.pop("ETag")
    assert held == {
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cache-Control": "no-cache",
        "Vary": "Accept, Accept-Encoding",
        "Content-Encoding": "gzip",
    }
    for name in ("Cross-Origin-Opener-Policy", "Cross-Origin-Resource-Policy"):
        assert found.headers[name] == "same-origin"
    assert found.headers["Referrer-Policy"] == "no-referrer"


def _header(found: Response, ending: str) -> str:
    return next(v for k, v in found.headers.items() if k.lower() == f"content-security-{ending}")


async def test_it_is_compressed_only_for_who_takes_it(place: Path) -> None:
    small = await ask(place)
    assert gzip.decompress(body(small)) == PAGE and len(body(small)) < len(PAGE)
    plain = await ask(place, accept_encoding="identity")
    assert body(plain) == PAGE and "Content-Encoding" not in plain.headers
    assert plain.headers["ETag"] != small.headers["ETag"]
    tiny = await ask(place, "/console/small.txt")
    assert body(tiny) == b"x" and "Content-Encoding" not in tiny.headers


async def test_who_has_it_is_not_sent_it_again(place: Path) -> None:
    tag = (await ask(place)).headers["ETag"]
    again = await ask(place, if_none_match=f'"other", {tag}')
    assert (again.code, body(again)) == (304, b"")
    assert "Content-Encoding" not in again.headers
    assert (await ask(place, if_none_match='"other"')).code == 200
    script = await ask(place, "/console/app-1.js")
    assert "immutable" in script.headers["Cache-Control"]
    assert isinstance(script.content, Text)
    assert script.content.content_type == "text/javascript; charset=utf-8"


@pytest.mark.parametrize(
    ("host", "sockets"),
    [
        ("node-1.example.com:9080", " ws://node-1.example.com:* wss://node-1.example.com:*"),
        ("node-1", " ws://node-1:* wss://node-1:*"),
        ("[::1]:9080", " ws://[::1]:* wss://[::1]:*"),
        ("[::1]", " ws://[::1]:* wss://[::1]:*"),
        ("a; script-src *", ""),
        ("evil' 'unsafe-inline", ""),
        ("", ""),
    ],
)
async def test_a_name_cannot_widen_the_policy(place: Path, host: str, sockets: str) -> None:
    policy = _header(await ask(place, host=host), "policy")
    assert policy.endswith(f"connect-src 'self'{sockets}")
    assert policy.count("script-src") == 1


@pytest.mark.parametrize(
    "target",
    ["/console/", "/console/nothing.js", "/console/../page.tar.xz", "/console/%2e%2e/x"],
)
async def test_nothing_but_the_page_is_served(place: Path, target: str) -> None:
    found = await ask(place, target)
    assert found.code == 404 and b"begin at /" in body(found)


@pytest.mark.parametrize("file", [PAGE_ARCHIVE, PAGE_DIGEST])
@pytest.mark.parametrize("fault", ["gone", "changed"])
async def test_a_damaged_page_is_one_sentence(place: Path, file: str, fault: str) -> None:
    if fault == "gone":
        (place / file).unlink()
    else:
        (place / file).write_bytes(b"0" * 64)
    found = await ask(place)
    assert found.code == 503 and b"`/v1` works as ever" in body(found)


async def test_it_is_read_once(place: Path) -> None:
    console = ConsolePage(place)
    assert (await console.answer(Request("GET", "/", BROWSER))).code == 200
    (place / PAGE_ARCHIVE).unlink()
    assert (await console.answer(Request("GET", "/", BROWSER))).code == 200


def _get(address: Address, **headers: str) -> tuple[int, bytes, str]:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
    try:
        connection.request("GET", "/", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("Content-Type", "")
    finally:
        connection.close()


def test_on_a_port_other_origins_and_other_names_are_turned_away() -> None:
    with served(Host(settled_plane()), development=OPERATOR) as (address, _):
        html = {"Accept": "text/html"}
        code, said, kind = _get(address, **html)
        assert code == 200 and kind.startswith("text/html") and b'id="app"' in said
        assert _get(address)[:2] == (404, b'{"error":"no such page"}\n')
        assert _get(address, Host="rebound.example.com", **html)[0] == 421
        assert _get(address, Origin="https://elsewhere.example.com", **html)[0] == 403


@pytest.mark.parametrize(
    ("certificate", "code"),
    [(None, 401), (certificate_of(STRANGER), 403), (certificate_of(OBSERVER), 200)],
    ids=["nobody", "no role", "observer"],
)
@pytest.mark.parametrize("target", ["/", "/console/licenses.txt"])
async def test_under_tls_the_certificate_decides(
    certificate: bytes | None, code: int, target: str
) -> None:
    pages = AdminPages(Host(settled_plane()))
    request = Request("GET", target, BROWSER, encrypted=True, certificate=certificate)
    answering = pages.take(request)
    assert answering is not None
    found = await answering
    assert found is not None and found.code == code
