"""The process of one broker node with its admin API: `python -m quantum.admin.main …`.

The broker of `quantum.node.main`, with `/v1` on its admin port; the same flags and exit codes.
"""

from __future__ import annotations

import gc


def main() -> None:
    """Run the node; what is imported for it is no garbage, and is not searched for any."""
    gc.disable()
    from clustor.runtime import main as clustor_main
    from quantum.admin.attaching import serve

    gc.enable()
    clustor_main.main(serve)


if __name__ == "__main__":
    main()
