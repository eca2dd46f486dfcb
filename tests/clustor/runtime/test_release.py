"""A node runs what was released, or does not run: every changed file is seen, and who signed it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.runtime.errors import ReleaseUnverified
from clustor.runtime.release import (
    RELEASE_FILE,
    RELEASE_KEYS_FILE,
    check_release,
    digests_below,
    packages_root,
)
from clustor.security.release import ReleaseKey, ReleaseManifest, SignedRelease, release_bytes

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([each]) * 32) for each in (1, 2))
AT_MS = 1_000


class Place:
    def __init__(self, root: Path) -> None:
        self.root, self.pki = root / "lib", root / "pki"
        self.pki.mkdir()
        for name in ("clustor/log/frame.py", "slipstream/__init__.py", "quantum/py.typed"):
            file = self.root / name
            file.parent.mkdir(parents=True)
            file.write_text(name)
        cached = self.root / "clustor" / "__pycache__" / "frame.pyc"
        cached.parent.mkdir()
        cached.write_bytes(b"")

    def sign(self, key: Ed25519PrivateKey = KEY, at_ms: int = AT_MS) -> None:
        manifest = ReleaseManifest(
            version="1.4.2", released_at_ms=at_ms, files=digests_below(self.root)
        )
        signature = key.sign(release_bytes(manifest))
        signed = SignedRelease(manifest=manifest, key_id="r1", signature=signature)
        (self.pki / RELEASE_FILE).write_bytes(msgspec.json.encode(signed))

    def believe(self, *, retires_at_ms: int | None = None) -> None:
        key = ReleaseKey(
            key_id="r1",
            public_key=KEY.public_key().public_bytes_raw().hex(),
            activates_at_ms=AT_MS,
            retires_at_ms=retires_at_ms,
        )
        (self.pki / RELEASE_KEYS_FILE).write_bytes(msgspec.json.encode([key]))

    def check(self) -> str | None:
        return check_release(self.pki, self.root)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.sign()
    made.believe()
    return made


def test_the_release_that_was_signed_runs(place: Place) -> None:
    assert place.check() == "1.4.2"
    place.believe(retires_at_ms=AT_MS + 1)  # what it signed in its time stays believed
    assert place.check() == "1.4.2"


def test_who_asks_for_none_gets_none(place: Place) -> None:
    (place.pki / RELEASE_KEYS_FILE).unlink()
    assert place.check() is None


def test_each_difference_is_named(place: Place) -> None:
    (place.root / "clustor/log/frame.py").write_text("other")
    (place.root / "quantum/py.typed").unlink()
    (place.root / "quantum/planted.py").write_text("")
    words = "changed: clustor/log/frame.py; missing: quantum/py.typed; added: quantum/planted.py"
    with pytest.raises(ReleaseUnverified, match=words):
        place.check()


def test_a_release_of_another_key_or_another_time_is_none(place: Place) -> None:
    place.sign(OTHER)
    with pytest.raises(ReleaseUnverified, match="not of the key r1"):
        place.check()
    place.sign(at_ms=AT_MS - 1)
    with pytest.raises(ReleaseUnverified, match="not in force"):
        place.check()
    place.sign()
    place.believe(retires_at_ms=AT_MS)
    with pytest.raises(ReleaseUnverified, match="not in force"):
        place.check()


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff"])
def test_a_release_that_cannot_be_read_stops_the_start(place: Place, content: bytes | None) -> None:
    path = place.pki / RELEASE_FILE
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ReleaseUnverified, match="cannot be read"):
        place.check()


def test_what_runs_here_can_be_described() -> None:
    found = digests_below(packages_root())
    assert "clustor/runtime/release.py" in found and "quantum/cli/app.py" in found
