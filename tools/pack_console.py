"""Pack the console that npm built into the one file that travels with the sources."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from quantum.console import PAGE_ARCHIVE, PAGE_DIGEST, pack_console, read_sources, source_digest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "console"
PLACE = ROOT / "src" / "quantum" / "console"


def main() -> int:
    built = {each.name: each.read_bytes() for each in (SOURCES / "build").iterdir()}
    packed = pack_console(built, source_digest(read_sources(SOURCES)))
    (PLACE / PAGE_ARCHIVE).write_bytes(packed)
    digest = hashlib.sha256(packed).hexdigest()
    (PLACE / PAGE_DIGEST).write_text(f"{digest}  {PAGE_ARCHIVE}\n")
    print(f"{(PLACE / PAGE_ARCHIVE).relative_to(ROOT)}  {len(packed) / 1e3:.0f} KB  {digest[:12]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
