"""An archiver that dies anywhere leaves what is listed, or what nobody sees."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from quantum.archive import ArchiveFindingKind, open_objects, read_listing, verify_prg
from tests.quantum.lake.archive.boxes import PRG, LogBox, entries, keys_at

CONTENT = bytes(range(256)) * 64


def die_after(steps: int, root: Path, url: str) -> int:
    command = [sys.executable, "-m", "tests.quantum.lake.archive.archiving_process"]
    return subprocess.run([*command, str(root), url, str(steps)], check=False).returncode


def test_whatever_step_it_dies_behind_the_archive_is_sound_and_the_next_one_goes_on(
    s3_url: str, tmp_path: Path
) -> None:
    """Behind examining, putting and listing a segment, and a snapshot."""
    with LogBox(tmp_path / "log", keys_at(tmp_path)) as box:
        for start in (1, 201):
            box.append(entries(start, start + 199))
            box.seal()
        box.emit(300, CONTENT)
    keys, objects = keys_at(tmp_path), open_objects(s3_url)
    seen: set[int] = set()
    deaths = 0
    for steps in (1, 2, 3, 4, 2, 3):
        code = die_after(steps, tmp_path, s3_url)
        verified = verify_prg(objects, PRG, keys)
        assert {each.kind for each in verified.findings} <= {ArchiveFindingKind.UNLISTED}
        assert verified.entries == verified.listing.last
        seen.add(len(verified.listing.rows))
        deaths += code == -signal.SIGKILL
    assert die_after(0, tmp_path, s3_url) == 0
    verified = verify_prg(objects, PRG, keys)
    assert verified.findings == (), "what was put twice has one name"
    assert (verified.listing.last, len(verified.listing.snapshots)) == (400, 1)
    assert (deaths, seen) == (6, {0, 1, 2, 3})
    assert read_listing(objects, PRG, keys).seq == 2, "nothing is listed twice"
