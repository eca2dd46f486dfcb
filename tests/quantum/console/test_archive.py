"""The archive of the console: what is packed is unpacked, and nothing else is served as it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Final

import pytest

import quantum.console
from quantum.console import (
    PAGE_ARCHIVE,
    PAGE_DIGEST,
    ConsoleUnreadable,
    pack_console,
    read_sources,
    source_digest,
    unpack_console,
)
from quantum.console.archive import MEMBERS_MAX, UNPACKED_BYTES_MAX

ROOT: Final = Path(__file__).resolve().parents[3]
SOURCES: Final = ROOT / "console"
PLACE: Final = Path(quantum.console.__file__).parent
FIRST_PAINT_BYTES_MAX: Final = 300_000
FILES: Final = {"index.html": b"<p>" * 400, "app.js": b"let a = 1;", "app.css": b"p {}"}


def digest(packed: bytes) -> str:
    return f"{hashlib.sha256(packed).hexdigest()}  {PAGE_ARCHIVE}\n"


def tar_of(files: dict[str, bytes], *, link: bool = False) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
        if link:
            member = tarfile.TarInfo("out")
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(member)
    return out.getvalue()


def test_what_is_packed_is_unpacked_ready_to_be_sent() -> None:
    packed = pack_console(FILES, "abc")
    assert packed == pack_console(dict(reversed(FILES.items())), "abc")
    sources, files = unpack_console(packed, digest(packed))
    assert sources == "abc"
    assert {name: each.body for name, each in files.items()} == FILES
    page = files["index.html"]
    assert page.kind == "text/html; charset=utf-8"
    assert page.gzipped is not None and gzip.decompress(page.gzipped) == page.body
    assert files["app.js"].gzipped is None  # it would not be worth it
    assert len({each.tag for each in files.values()}) == 3


GOOD: Final = {"sources.sha256": b"abc\n", **FILES}
NO_PAGE: Final[dict[str, bytes]] = {
    "nothing": b"",
    "no xz": b"no archive",
    "cut off": lzma.compress(tar_of(GOOD))[:-20],
    "no tar": lzma.compress(b"x" * 2048),
    "without its sources": lzma.compress(tar_of(FILES)),
    "without a page": lzma.compress(tar_of({"sources.sha256": b"abc\n", "app.js": b""})),
    "a link": lzma.compress(tar_of(GOOD, link=True)),
    "too long": lzma.compress(tar_of({**GOOD, "big": bytes(UNPACKED_BYTES_MAX)})),
    "too many": lzma.compress(tar_of({**GOOD, **{f"f{n}": b"" for n in range(MEMBERS_MAX)}})),
}


@pytest.mark.parametrize("packed", NO_PAGE.values(), ids=NO_PAGE.keys())
def test_what_is_no_page_is_refused(packed: bytes) -> None:
    with pytest.raises(ConsoleUnreadable):
        unpack_console(packed, digest(packed))


@pytest.mark.parametrize("said", ["", "\n", "0" * 64, "page.tar.xz"])
def test_what_has_another_digest_is_refused(said: str) -> None:
    with pytest.raises(ConsoleUnreadable, match="not the one that was built"):
        unpack_console(pack_console(FILES, "abc"), said)


def test_each_name_and_each_byte_of_the_sources_counts(tmp_path: Path) -> None:
    one = source_digest({"a": b"bc", "d": b""})
    others = [{"a": b"b", "d": b"c"}, {"ab": b"c", "d": b""}, {"a": b"bc"}, {"a": b"bd", "d": b""}]
    assert one not in {source_digest(each) for each in others}
    assert one == source_digest({"d": b"", "a": b"bc"})
    for name in ("src/a.ts", "node_modules/b/c.js", "build/app.js", ".npmrc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert set(read_sources(tmp_path)) == {"src/a.ts", ".npmrc"}


def test_the_committed_page_was_built_of_the_committed_sources() -> None:
    sources, files = unpack_console(
        (PLACE / PAGE_ARCHIVE).read_bytes(), (PLACE / PAGE_DIGEST).read_text()
    )
    assert sources == source_digest(read_sources(SOURCES)), "run `make console`"
    sent = sum(len(each.gzipped or each.body) for each in files.values())
    assert sent < FIRST_PAINT_BYTES_MAX
    page = files["index.html"].body.decode()
    assert "://" not in page  # nothing from elsewhere
    assert all(f"/console/{name}" in page for name in files if name.startswith(("app-", "icon-")))


def test_the_lock_pins_every_package_and_names_no_place_to_load_it_from() -> None:
    lock = json.loads((SOURCES / "package-lock.json").read_text())
    packages = {name: each for name, each in lock["packages"].items() if name}
    assert packages
    assert all(each["integrity"].startswith("sha512-") for each in packages.values())
    assert not any("resolved" in each for each in packages.values())


def test_a_build_gives_the_committed_page_again(tmp_path: Path) -> None:
    if shutil.which("node") is None or not (SOURCES / "node_modules" / "esbuild").is_dir():
        pytest.skip("`make console` was not run here: no esbuild")
    for name, body in read_sources(SOURCES).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(body)
    (tmp_path / "node_modules").symlink_to(SOURCES / "node_modules")
    subprocess.run(["node", "build.mjs"], cwd=tmp_path, check=True, timeout=300)
    built = {each.name: each.read_bytes() for each in (tmp_path / "build").iterdir()}
    packed = (PLACE / PAGE_ARCHIVE).read_bytes()
    _, files = unpack_console(packed, (PLACE / PAGE_DIGEST).read_text())
    assert built == {name: each.body for name, each in files.items()}
