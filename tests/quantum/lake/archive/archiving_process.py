"""An archiver in a process of its own, that dies by SIGKILL behind a step:

python -m tests.quantum.lake.archive.archiving_process ROOT URL STEPS
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from quantum.archive import open_objects
from tests.quantum.lake.archive.boxes import LogBox, keys_at


def main() -> None:
    root, url, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    left = [steps]

    def passing(_step: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with LogBox(root / "log", keys_at(root)) as box:
        box.committed = box.opened.log.last_index
        box.archive(open_objects(url), passing)


if __name__ == "__main__":
    main()
