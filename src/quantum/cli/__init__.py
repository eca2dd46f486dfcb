"""The `quantum` command: one sentence and an exit code for people, JSON for machines."""

import gc
import signal

__all__ = ["main"]


def main() -> None:
    """Run the command line; Ctrl-C while it is still being read ends it without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()  # until all is imported: none of it is garbage, and looking takes a tenth
    from quantum.cli.app import main as run  # late: that takes a quarter of a second

    run()
