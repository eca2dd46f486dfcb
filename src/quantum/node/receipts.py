"""Receipts on a node: it signs what its own disk proves, and gathers what the others sign.

A statement is made only after the entry was read from this node's log and the ledger beside it,
both from disk. An entry that is not committed, not proven by the ledger, or compacted away is
refused: nobody signs from memory or hearsay.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import TYPE_CHECKING, Final

import msgspec

from clustor.log.errors import LogError
from clustor.runtime.pki.identity import NodeId
from clustor.security.receipts import (
    DurabilityReceipt,
    DurabilityStatement,
    SignedStatement,
    digest_message,
    receipt_id,
    sign_statement,
)
from quantum.broker.mentions import MentionKind, mentions_in
from quantum.node.log_reading import CommittedLog, commands_of, wait_for_entry

if TYPE_CHECKING:
    from quantum.mesh.tenant import Tenant
    from quantum.node.service import BrokerService
    from quantum.partition.leader import PartitionLeader

KIND: Final = "receipt"
_READS_AT_ONCE: Final = 4
_ID: Final = re.compile(r"(\d{1,10})-(\d{1,16})-([0-9a-f]{16})")
_LOGGED: Final = (MentionKind.PUBLISHED, MentionKind.TAKEN, MentionKind.FORWARDED)


class MessageId(msgspec.Struct, frozen=True):
    """A message in a log: its group, its entry, and the beginning of its digest."""

    group: int
    index: int
    digest: str

    def __str__(self) -> str:
        return f"{self.group}-{self.index}-{self.digest}"


def parse_message_id(text: str) -> MessageId | None:
    """Read an id as acknowledgements name it; None: it is none."""
    found = _ID.fullmatch(text)
    return None if found is None else MessageId(int(found[1]), int(found[2]), found[3])


class ReceiptAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What one node says: a statement, or why it signs nothing."""

    signed: SignedStatement | None = None
    refusal: str = ""


class Receipts:
    """Signs for this node's replicas, and asks the others."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._reading = asyncio.Semaphore(_READS_AT_ONCE)
        service.questions.answerers[KIND] = self._answer

    def partition_of(self, tenant: Tenant, wanted: MessageId) -> PartitionLeader | None:
        """Return the partition whose log an id names."""
        groups = {int(prg.group.partition_id): prg for prg in tenant.prgs}
        return groups.get(wanted.group)

    async def gather(
        self, tenant: Tenant, prg: PartitionLeader, wanted: MessageId
    ) -> DurabilityReceipt:
        """Ask every replica of the partition, this one included."""
        config = prg.group.replica.group.core.config
        nodes = sorted(map(int, config.all_voters))
        answers = await asyncio.gather(*(self._of(node, wanted) for node in nodes))
        found = dict(zip(nodes, answers, strict=True))
        statements = [each.signed for each in answers if each.signed is not None]
        first = statements[0].statement if statements else None
        return DurabilityReceipt(
            id=str(wanted)
            if first is None
            else receipt_id(first.group, first.index, first.message_sha256),
            tenant=tenant.name,
            partition=prg.number,
            statements=statements,
            missing={str(node): each.refusal for node, each in found.items() if each.refusal},
        )

    async def _of(self, node: int, wanted: MessageId) -> ReceiptAnswer:
        if self._service.is_local(node):
            return await self.sign(wanted)
        answer = await self._service.questions.ask(node, KIND, msgspec.msgpack.encode(wanted))
        if answer is None:
            return ReceiptAnswer(refusal="it does not answer")
        return msgspec.msgpack.decode(answer, type=ReceiptAnswer)

    async def _answer(self, question: bytes) -> bytes:
        wanted = msgspec.msgpack.decode(question, type=MessageId)
        return msgspec.msgpack.encode(await self.sign(wanted))

    async def sign(self, wanted: MessageId) -> ReceiptAnswer:
        """Read what this node has of an entry, and sign it."""
        prg = self._hosted(wanted.group)
        if prg is None or prg.group.replica.failed is not None:
            return ReceiptAnswer(refusal="it has no replica of this group that works")
        await wait_for_entry(prg, wanted.index)
        async with self._reading:
            log = CommittedLog(prg, self._service.node.settings.keys)
            try:
                found = await asyncio.to_thread(self._state, log, wanted)
            finally:
                log.close()
        if isinstance(found, str):
            return ReceiptAnswer(refusal=found)
        return ReceiptAnswer(signed=sign_statement(found, self._service.node.settings.signer))

    def _hosted(self, group: int) -> PartitionLeader | None:
        for tenant in self._service.tenants.values():
            for prg in tenant.prgs:
                if int(prg.group.partition_id) == group:
                    return prg
        return None

    def _state(self, log: CommittedLog, wanted: MessageId) -> DurabilityStatement | str:
        """Read log and ledger from disk; a text says why there is nothing to sign."""
        try:
            entry = log.entry(wanted.index)
            proven = log.proven_index()
        except (LogError, OSError) as error:
            return f"its disk does not tell: {error}"
        if entry is None:
            if wanted.index <= log.base:
                return f"its log begins behind the entry, at {log.base + 1}"
            return f"its log is committed and durable up to {log.last} only"
        if proven < wanted.index:
            return f"its ledger proves the log up to {proven} only"
        digests = (
            digest_message(each.message.topic, each.message.payload)
            for each in mentions_in(commands_of(entry))
            if each.kind in _LOGGED
        )
        message = next((each for each in digests if each.startswith(wanted.digest)), None)
        if message is None:
            return "the entry has no message of this digest"
        node = self._service.node
        return DurabilityStatement(
            cluster=node.cluster.birth,
            group=log.group,
            term=int(entry.term),
            index=int(entry.index),
            entry_sha256=hashlib.sha256(entry.payload).hexdigest(),
            message_sha256=message,
            durable_index=proven,
            mode=log.mode.name,
            voters=tuple(sorted(map(int, log.config.voters))),
            outgoing=tuple(sorted(map(int, log.config.outgoing))),
            node=int(NodeId(node.node_id)),
            at_ms=self._service.now_ms(),
        )
