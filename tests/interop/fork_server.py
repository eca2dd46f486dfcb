"""A process that has imported Quantum once, and forks the nodes and commands that tests start.

What it forks is a real process with its own pid, arguments, environment and files, the child of
who asked for it; only the imports, nearly all of what a start costs, were done before. It has
neither a thread nor a loop when it forks. See `forked.py` for who asks.
"""

from __future__ import annotations

import gc
import os
import runpy
import socket
import sys
import warnings
from importlib import import_module
from typing import Final

import msgspec

from tests.interop import forked

PRELOADED: Final = (
    *(f"quantum.cli.{name}" for name in ("app", "up", "cluster", "pub", "sub", "broker")),
    *(f"quantum.cli.{name}" for name in ("admin", "streams", "kafka", "node_start", "members")),
    "quantum.admin.attaching",
    "quantum.node.main",
    "quantum.client",
    "rich.table",
    "typer.rich_utils",
)


def serve(channel: socket.socket) -> forked.Order:
    """Fork for whoever is at the other end, until it is gone; return in each forked process."""
    assert len(os.listdir("/proc/self/task")) == 1, "a thread does not survive a fork"
    while True:
        said, files, _, _ = socket.recv_fds(channel, forked.ORDER_BYTES_MAX, 3)
        if not said:
            os._exit(0)
        order = msgspec.json.decode(said, type=forked.Order)
        told, tell = os.pipe()
        if not _fork(tell):
            become(order, files)
            return order
        for file in (tell, *files):
            os.close(file)
        with open(told, "rb") as answer:
            channel.send(answer.read())  # that is: when nobody holds the other end


def _fork(tell: int) -> int:
    """Fork a process whose parent ends at once: the kernel gives it to who asked for it."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
    elif pid := os.fork():
        os.write(tell, b"%d" % pid)
        os._exit(0)
    return between


def become(order: forked.Order, files: list[int]) -> None:
    """Be what a fresh interpreter would be when its program begins."""
    if order.new_session:
        os.setsid()
    if order.process_group >= 0:
        os.setpgid(0, order.process_group)
    os.chdir(order.directory)
    os.environ.clear()
    os.environ.update(order.environment)
    sys.argv = ["-c" if order.kind == "-c" else order.program, *order.arguments]
    sys.path[0] = "" if order.kind == "-c" else order.directory
    sys.modules["__main__"].__package__ = None  # a program's own name in its help comes of it
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def run(order: forked.Order) -> None:
    """Run the program as the main one: how it ends is the interpreter's business."""
    if order.kind == "-c":
        exec(order.program, {"__name__": "__main__"})
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it was imported before, as told
        runpy.run_module(order.program, run_name="__main__", alter_sys=True)


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    for module in PRELOADED:
        import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a forked process touches none of these pages
    order = serve(channel)
    while order.starts_others:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork():
            theirs.close()
            forked.install(ours)
            break
        ours.close()
        _rest()
        order = serve(theirs)
    run(order)


def _rest() -> None:
    """Hold no file of the process that is served: who reads it waits for its last holder."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)


if __name__ == "__main__":
    main()
