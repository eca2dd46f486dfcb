"""From entries to columns: the messages of a log as Arrow record batches. Pure.

Columns are collected, not rows: of a publish only what was asked for is looked at, its bytes go
straight into Arrow, and what is the same for a whole command is kept once for it (`RowRun`). The
records of packed publishes are what there is most of, so `_add_packed` spells `decode_record` out,
and stops at the same byte as the broker does (a test compares them).

`sub_index` numbers an entry's records of messages from 0, refused and repeated ones too; it does
not depend on filters, columns or what is known of the broker's state. Wills that the machine said
while it applied the entry have no record: they are numbered from WILLS_FROM on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from clustor.log.types import Entry, EntryKind
from clustor.replica import decode_batch
from quantum.archive.types import PrgId
from quantum.broker.commands import (
    OWN_ORIGIN,
    PUBLISHES_HEAD,
    ChannelItems,
    PublishOnce,
    decode_known,
)
from quantum.broker.errors import UnknownCommand
from quantum.broker.items import Forward, decode_item
from quantum.broker.message import (
    EXPIRES,
    EXPIRY,
    HEAD_BYTES,
    LENGTH_BYTES,
    QOS_MASK,
    RETAIN,
    unpack_head,
)
from quantum.lake.columns import (
    NO_SEQUENCE,
    RowRun,
    SharedColumns,
    guessed_protocols,
    protocols,
    text_array,
)
from quantum.lake.filters import NO_FILTERS, Filters
from quantum.lake.judging import (
    NOT_CAPTURED,
    CommandVerdict,
    Judge,
    ReplayJudge,
    count_records,
    packed_head,
)
from quantum.lake.properties import property_columns
from quantum.lake.refusals import BadOption, EntryUnreadable
from quantum.lake.schema import (
    NAMES,
    SCHEMA_VERSION,
    arrow_schema,
    chosen,
)

BATCH_ROWS_MAX: Final = 16_384
BATCH_BYTES_MAX: Final = 8 << 20
WILLS_FROM: Final = 1 << 24
"""More than the records of any entry."""
WILLS_SINCE: Final = 2
"""The version from which on wills have rows, and flags tell the protocol."""
_FORWARD: Final = b"\x92\x01"  # how an encoded Forward begins: an array of two, its tag


class RowBuilder:
    """Takes the entries of one partition in order, and gives batches of the columns asked for."""

    def __init__(
        self,
        prg: PrgId,
        judge: Judge,
        names: Sequence[str] = NAMES,
        filters: Filters = NO_FILTERS,
        version: int = SCHEMA_VERSION,
    ) -> None:
        self._prg = prg
        self._judge = judge
        self._filters = filters
        self._schema = arrow_schema(names, version)
        self._has_wills = version >= WILLS_SINCE
        wanted = {column.name for column in chosen(names, version)}
        self._wants_topic = "topic" in wanted
        self._wants_payload = "payload" in wanted
        self._wants_publisher = "publisher" in wanted
        self._wants_properties = bool(wanted & {"content_type", "user_properties", "protocol"})
        self._captured = NOT_CAPTURED
        if isinstance(judge, ReplayJudge):
            judge.stream = filters.stream
        elif filters.stream is not None:
            why = "the offsets of a stream follow from the broker's state, which is gone here"
            raise BadOption(why, prg=prg)
        self._clear()

    def _clear(self) -> None:
        self._runs: list[RowRun] = []
        self._numbers: list[int] = []  # of each row: which record of its command it is
        self._flags: list[int] = []
        self._epochs: list[int] = []
        self._message_ids: list[int] = []
        self._topics: list[bytes] = []
        self._payloads: list[bytes] = []
        self._publishers: list[bytes] = []
        self._properties: list[bytes] = []
        self._offsets: list[int] = []  # of each row, where a stream is asked for
        self._bytes = 0

    @property
    def rows(self) -> int:
        return len(self._numbers)

    @property
    def is_full(self) -> bool:
        """Whether it is time to `take` a batch."""
        return len(self._numbers) >= BATCH_ROWS_MAX or self._bytes >= BATCH_BYTES_MAX

    def learn(self, entry: Entry) -> None:
        """Let an entry before the first wanted one be known to the judge."""
        if entry.kind is EntryKind.DATA:
            with self._while_applying(entry):
                self._judge.learn(entry.index, self._commands(entry))

    def add(self, entry: Entry) -> None:
        """Take the messages of the next entry.

        Raises EntryUnreadable for an entry that is authentic and no batch of commands: a later
        release wrote it, or this is no broker's log.
        """
        if entry.kind is not EntryKind.DATA:
            return
        commands = self._commands(entry)
        with self._while_applying(entry):
            verdicts = self._judge.judge(entry.index, commands)
        if self._judge.is_cut:
            why = "a large message began before what is read: read exactly, or from further back"
            raise EntryUnreadable(why, prg=self._prg, index=entry.index)
        sub_from = 0
        for nth, (data, verdict) in enumerate(zip(self._judge.whole, verdicts, strict=True)):
            if self._filters.stream is not None:
                self._captured = self._judge.captured[nth]
            if data[:1] == b"\0":
                sub_from += self._on_packed(entry.index, sub_from, data, verdict)
            elif verdict is not None:
                sub_from += self._on_command(entry.index, sub_from, data, verdict)
        if self._has_wills and self._judge.wills:
            self._on_wills(entry.index)
        self._bytes += len(entry.payload)

    def _on_wills(self, index: int) -> None:
        for nth, (now_ms, message) in enumerate(self._judge.wills):
            place = (self._prg.number, NO_SEQUENCE, NO_SEQUENCE, WILLS_FROM + nth, 1)
            offset = None
            if self._filters.stream is not None:
                offset = self._judge.will_offsets[nth]
                if offset is None:
                    continue
            self._add_record(RowRun(1, index, now_ms, *place), message.record, offset=offset)

    @contextmanager
    def _while_applying(self, entry: Entry) -> Iterator[None]:
        try:
            yield
        except UnknownCommand as error:
            raise EntryUnreadable(str(error), prg=self._prg, index=entry.index) from error

    def _commands(self, entry: Entry) -> list[bytes]:
        try:
            return decode_batch(entry.payload)
        except ValueError as error:
            raise EntryUnreadable(str(error), prg=self._prg, index=entry.index) from None

    def _on_packed(
        self, index: int, sub_from: int, data: bytes, verdict: CommandVerdict | None
    ) -> int:
        """Take packed publishes; return how many records there are."""
        head = packed_head(data)
        if head is None:
            return 0
        if verdict is None or not self._filters.wants_time(head.now_ms):
            return count_records(data)
        if self._filters.stream is not None:
            return self._add_packed_captured(index, sub_from, data, verdict)
        before = len(self._numbers)
        records = self._add_packed(data, verdict)
        taken = len(self._numbers) - before
        if taken:
            own = head.origin == OWN_ORIGIN
            origin = self._prg.number if own else head.origin
            term = NO_SEQUENCE if own else head.origin_term
            forward_from = NO_SEQUENCE if own else head.first_sequence
            run = RowRun(taken, index, head.now_ms, origin, term, forward_from, sub_from)
            self._runs.append(run)
        return records

    def _add_packed(self, data: bytes, verdict: CommandVerdict) -> int:
        """Walk the records as `quantum.broker.publishing._publish_all` does."""
        first, refused = verdict
        checks_topic, wants = self._filters.is_about_topics, self._filters.wants_topic
        wants_topic, wants_payload = self._wants_topic, self._wants_payload
        wants_publisher, wants_properties = self._wants_publisher, self._wants_properties
        numbers, flags_of = self._numbers, self._flags
        epochs, message_ids = self._epochs, self._message_ids
        topics, payloads, publishers = self._topics, self._payloads, self._publishers
        at, end, number = PUBLISHES_HEAD.size, len(data), 0
        try:
            while at < end:
                length, flags, client, topic, properties, packet_id, epoch = unpack_head(data, at)
                following = at + LENGTH_BYTES + length
                at += HEAD_BYTES
                if flags & EXPIRES:
                    at += EXPIRY.size
                topic_at = at + client
                properties_at = topic_at + topic
                payload_at = properties_at + properties
                if payload_at > following or following > end or flags & QOS_MASK == QOS_MASK:
                    break
                if (number >= first and number not in refused) and not (
                    checks_topic and not wants(data[topic_at:properties_at])
                ):
                    numbers.append(number)
                    flags_of.append(flags)
                    epochs.append(epoch)
                    message_ids.append(packet_id)
                    if wants_topic:
                        topics.append(data[topic_at:properties_at])
                    if wants_payload:
                        payloads.append(data[payload_at:following])
                    if wants_publisher:
                        publishers.append(data[at:topic_at])
                    if wants_properties:
                        self._properties.append(data[properties_at:payload_at])
                at = following
                number += 1
        except struct.error:
            pass  # cut short, for the broker at the same byte
        return number

    def _add_packed_captured(
        self, index: int, sub_from: int, data: bytes, verdict: CommandVerdict
    ) -> int:
        """Take those packed publishes that the stream kept, one by one."""
        head = packed_head(data)
        assert head is not None
        own = head.origin == OWN_ORIGIN
        origin = self._prg.number if own else head.origin
        term = NO_SEQUENCE if own else head.origin_term
        at, number, records = PUBLISHES_HEAD.size, 0, count_records(data)
        while number < records:
            end = at + LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "little")
            record, at = data[at:end], end
            if number >= verdict.first and number not in verdict.refused:
                sequence = NO_SEQUENCE if own else head.first_sequence + number
                place = (origin, term, sequence, sub_from + number)
                self._add_captured(RowRun(1, index, head.now_ms, *place), record)
            number += 1
        return records

    def _add_captured(self, run: RowRun, record: bytes, *, may_be_will: bool = False) -> None:
        """Take a record that stands alone; where a stream is asked for, if that kept it."""
        offset = None
        if self._filters.stream is not None:
            offset = self._captured.place(record)
            if offset is None:
                return
        self._add_record(run, record, may_be_will=may_be_will, offset=offset)

    def _on_command(self, index: int, sub_from: int, data: bytes, verdict: CommandVerdict) -> int:
        command = decode_known(data)
        if isinstance(command, PublishOnce):
            for number, record in enumerate(command.records):
                if number not in verdict.refused:
                    run = RowRun(
                        1,
                        index,
                        command.now_ms,
                        self._prg.number,
                        NO_SEQUENCE,
                        NO_SEQUENCE,
                        sub_from + number,
                    )
                    self._add_captured(run, record)
            return len(command.records)
        if isinstance(command, ChannelItems):
            return self._on_items(index, sub_from, command, verdict)
        return 0

    def _on_items(
        self, index: int, sub_from: int, command: ChannelItems, verdict: CommandVerdict
    ) -> int:
        forwards = 0
        for number, (sequence, item) in enumerate(
            zip(command.sequences, command.items, strict=False)
        ):
            record = _forwarded(item)
            if record is None:
                continue
            if number not in verdict.refused:
                run = RowRun(
                    1,
                    index,
                    command.now_ms,
                    command.origin,
                    NO_SEQUENCE,
                    sequence,
                    sub_from + forwards,
                )
                self._add_captured(run, record, may_be_will=True)
            forwards += 1
        return forwards

    def _add_record(
        self, run: RowRun, record: bytes, *, may_be_will: bool = False, offset: int | None = None
    ) -> None:
        """Take a record that stands alone. A forwarded will has no packet id, whatever its QoS."""
        try:
            length, flags, client, topic, properties, packet_id, epoch = unpack_head(record, 0)
        except struct.error:
            return
        at = HEAD_BYTES + (EXPIRY.size if flags & EXPIRES else 0)
        topic_at = at + client
        properties_at = topic_at + topic
        payload_at, end = properties_at + properties, LENGTH_BYTES + length
        if payload_at > end or end > len(record) or flags & QOS_MASK == QOS_MASK:
            return
        name = record[topic_at:properties_at]
        if not self._filters.wants_topic(name):
            return
        if may_be_will and not packet_id:
            if not self._has_wills:
                return
            run = run._replace(is_will=1)
        if not self._filters.wants_time(run.now_ms):
            return
        self._runs.append(run)
        self._numbers.append(0)
        self._offsets += () if offset is None else (offset,)
        self._flags.append(flags)
        self._epochs.append(epoch)
        self._message_ids.append(packet_id)
        self._topics += (name,) if self._wants_topic else ()
        self._payloads += (record[payload_at:end],) if self._wants_payload else ()
        self._publishers += (record[at:topic_at],) if self._wants_publisher else ()
        self._properties += (record[properties_at:payload_at],) if self._wants_properties else ()

    # Batches.

    def take(self) -> pa.RecordBatch:
        """Give what was collected, and begin anew."""
        columns = SharedColumns(self._prg, self._runs, self._numbers, is_exact=self._judge.is_exact)
        arrays = [self._array(field, columns) for field in self._schema]
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, field: pa.Field, columns: SharedColumns) -> pa.Array:
        match field.name:
            case "topic":
                return text_array(self._topics)
            case "payload":
                return pa.array(self._payloads, pa.binary())
            case "publisher":
                return text_array(self._publishers)
            case "qos":
                return pa.array(np.asarray(self._flags, np.int32) & QOS_MASK)
            case "retain":
                return pa.array(np.asarray(self._flags, np.int32) & RETAIN != 0)
            case "session_epoch":
                return pa.array(self._epochs, pa.int64())
            case "message_id":
                return pa.array(self._message_ids, pa.int32())
            case "content_type" | "user_properties":
                return property_columns(self._properties)[field.name]
            case "protocol" if self._has_wills:
                return protocols(self._flags, self._properties)
            case "protocol":
                return guessed_protocols(self._properties)
            case "stream_offset" if self._filters.stream is not None:
                return pa.array(self._offsets, pa.int64())
            case "stream_partition" if self._filters.stream is not None:
                return pa.repeat(pa.scalar(self._prg.number, pa.int32()), len(self._offsets))
            case _:
                return columns.array(field)


def _forwarded(item: bytes) -> bytes | None:
    """Return the record of a Forward; None for another item."""
    if not item.startswith(_FORWARD):
        return None
    try:
        found = decode_item(item)
    except msgspec.DecodeError:
        return None
    return found.record if isinstance(found, Forward) else None
