"""Commands for partitions that other nodes lead: asked over the link, answered once.

A client's connection ends at the node where it came in; what it wants may be another partition's.
An answer of None says that nobody knows whether the command took effect: the link broke, or the
leader changed. Whoever asks must be able to ask again without harm.
"""

from __future__ import annotations

from typing import Final, Protocol

from clustor.control.command_gates import CommandGate
from quantum.broker.sections import is_section_command
from quantum.mesh import link
from quantum.partition.leader import PartitionLeader
from quantum.partition.ports import Completion

ASKS_OPEN_MAX: Final = 65_536
ASKED_BYTES_MAX: Final = 64 << 20
"""What all that is asked and not answered may weigh: the link holds it in memory."""


class AskLinks(Protocol):
    """What asks need of their node."""

    def say(self, node: int, said: link.Said, size: int) -> None: ...
    def is_local(self, node: int | None) -> bool: ...
    def knows(self, node: int, gate: CommandGate) -> bool: ...


class Asks:
    """What one tenant's clients here have asked of leaders elsewhere, and what is asked here."""

    def __init__(self, life: str, prgs: list[PartitionLeader], links: AskLinks) -> None:
        self._life = life
        self._prgs = prgs
        self._links = links
        self._number = 0
        self._open: dict[int, tuple[int, int, Completion]] = {}
        """By number: the node that was asked, the command's length, and who waits."""
        self.open_bytes = 0

    def ask(self, prg: int, command: bytes, completion: Completion) -> None:
        """Let the leader of a partition log a section's command, wherever it is."""
        leader = self._prgs[prg] if 0 <= prg < len(self._prgs) else None
        if leader is not None and leader.leading:
            leader.ask(command, completion)
            return
        node = None if leader is None else leader.leader_node
        if node is None or not self._may_ask(node, command):
            completion(None)
            return
        self._number += 1
        self._open[self._number] = (node, len(command), completion)
        self.open_bytes += len(command)
        said = link.AskedCommand(self._life, prg, self._number, command)
        self._links.say(node, said, len(command) + 64)

    def _may_ask(self, node: int, command: bytes) -> bool:
        has_room = len(self._open) < ASKS_OPEN_MAX and self.open_bytes < ASKED_BYTES_MAX
        is_elsewhere = not self._links.is_local(node) and self._links.knows(node, CommandGate.ASKS)
        return has_room and is_elsewhere and is_section_command(command)

    def on_asked(self, peer: int, said: link.AskedCommand) -> None:
        """Log what a client of another node wants; only sections are asked from elsewhere."""

        def answer(reply: bytes | None) -> None:
            size = 64 + len(reply or b"")
            answered = link.AnsweredCommand(self._life, said.prg, said.number, reply)
            self._links.say(peer, answered, size)

        leader = self._prgs[said.prg] if 0 <= said.prg < len(self._prgs) else None
        if leader is None or not leader.leading or not is_section_command(said.command):
            answer(None)
        else:
            leader.ask(said.command, answer)

    def on_answered(self, peer: int, said: link.AnsweredCommand) -> None:
        """Tell who asked; an answer that nobody waits for any more is dropped."""
        asked = self._open.get(said.number)
        if asked is not None and asked[0] == peer:
            self._finish(said.number, said.reply)

    def link_anew(self, peer: int) -> None:
        """Something between this node and a peer was lost: nobody knows what became of it."""
        for number in [each for each, asked in self._open.items() if asked[0] == peer]:
            self._finish(number, None)

    def _finish(self, number: int, reply: bytes | None) -> None:
        _, size, completion = self._open.pop(number)
        self.open_bytes -= size
        completion(reply)
