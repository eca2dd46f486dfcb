"""Kafka on the quorum log: the wire, what requests need, and the server side of a connection.

kio has every message's schema. Where `hypothesis` is installed it registers strategies with it,
and that takes longer than all else of the import: nobody here asks for them.
"""

import sys

_is_loaded = "hypothesis" in sys.modules
if not _is_loaded:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # how Python knows what is absent
try:
    import kio.static.primitive  # noqa: F401
finally:
    if not _is_loaded:
        del sys.modules["hypothesis"]
