"""The book below `/docs`: served offline, read-only, and nothing outside of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clustor.runtime.admin.http import Response, Text, respond
from quantum.admin.book import UNBUILT, answer_book

PAGE = b"<html><script>let a = 1</script><p>hello</p></html>"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    root = tmp_path / "site"
    (root / "assets").mkdir(parents=True)
    (root / "index.html").write_bytes(PAGE)
    (root / "assets" / "a.css").write_bytes(b"p {}")
    (root / ".hidden").write_bytes(b"secret")
    (tmp_path / "secret.txt").write_bytes(b"secret")
    (root / "out.txt").symlink_to(tmp_path / "secret.txt")
    return root


def ask(path: str, root: Path | None, **headers: str) -> tuple[int, bytes, Response]:
    found = asyncio.run(answer_book(path, headers, root))
    assert isinstance(found.content, Text)
    respond(found.code, found.content, found.headers)  # the port can say all of it
    return found.code, found.content.body, found


def test_pages_have_their_kind_a_tag_and_a_policy(site: Path) -> None:
    code, body, page = ask("/docs/", site)
    assert (code, body) == (200, PAGE)
    assert isinstance(page.content, Text) and page.content.content_type.startswith("text/html")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "'unsafe-inline'" not in policy.split("style-src")[0]
    assert "script-src 'self' 'sha256-" in policy
    code, body, style = ask("/docs/assets/a.css", site)
    assert isinstance(style.content, Text)
    assert (code, style.content.content_type) == (200, "text/css; charset=utf-8")
    tag = page.headers["ETag"]
    assert ask("/docs/", site, **{"if-none-match": tag})[:2] == (304, b"")
    assert ask("/docs/", site, **{"if-none-match": '"another"'})[0] == 200
    code, _, moved = ask("/docs", site)
    assert (code, moved.headers["Location"]) == (308, "/docs/")


@pytest.mark.parametrize(
    "path",
    [
        *("/docs/../secret.txt", "/docs/%2e%2e/secret.txt", "/docs/..%2fsecret.txt"),
        *("/docs//etc/passwd", "/docs/%2fetc/passwd", "/docs/.hidden", "/docs/out.txt"),
        *("/docs/a%00b", "/docs/..%5csecret.txt", "/docs/%ff", "/docs/assets", "/docs/nothing"),
    ],
)
def test_nothing_but_the_book_is_read(site: Path, path: str) -> None:
    code, body, _ = ask(path, site)
    assert code == 404 and b"secret\n" not in body + b"\n" and b"root:" not in body


def test_where_it_is_not_built_one_sentence_says_how() -> None:
    assert ask("/docs/", None)[:2] == (404, UNBUILT)
