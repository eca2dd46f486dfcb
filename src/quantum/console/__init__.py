"""The console: one page that a browser gets at `/` of the admin port, served from memory.

It promises that what is served is what was built from the sources that it names, that nothing is
loaded from elsewhere, and that it can do nothing that `/v1` does not let its caller do.
"""

from quantum.console.archive import (
    PAGE_ARCHIVE,
    PAGE_DIGEST,
    ConsoleFile,
    ConsoleUnreadable,
    pack_console,
    read_sources,
    source_digest,
    unpack_console,
)
from quantum.console.serving import ConsolePage, is_of_console

__all__ = [
    "PAGE_ARCHIVE",
    "PAGE_DIGEST",
    "ConsoleFile",
    "ConsolePage",
    "ConsoleUnreadable",
    "is_of_console",
    "pack_console",
    "read_sources",
    "source_digest",
    "unpack_console",
]
