"""The `quantum` command: one sentence and an exit code for people, JSON for machines."""

import gc
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; Ctrl-C while it is still being read ends it without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:] in ([], ["-h"], ["--help"]):
        _show_overview()
        raise SystemExit(0 if sys.argv[1:] else 2)
    if sys.argv[1:] == ["--version"]:
        _show_version()
        raise SystemExit(0)
    gc.disable()  # until all is imported: none of it is garbage, and looking takes a tenth
    from quantum.cli.app import main as run  # late: that takes a quarter of a second

    run()


def _show_overview() -> None:
    """Say what there is, quickly: the tree of commands is not needed for it."""
    from quantum.cli.commands import overview
    from quantum.cli.naming import own_command

    sys.stdout.write(overview(own_command()) + "\n")


def _show_version() -> None:
    from clustor.runtime.build import build

    sys.stdout.write(f"quantum {build()}\n")
