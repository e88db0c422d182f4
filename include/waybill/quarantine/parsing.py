"""Rows of the quarantine, parsed again: back into messages, and through the row builder of a partition run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from waybill.config import Reading
from waybill.config.enums import BackupFormat
from waybill.formats.reading import SET_ASIDE
from waybill.log.decode import MESSAGE_SCHEMA, NO_TIMESTAMP_US
from waybill.names import TopicPartition
from waybill.partition.refused import OTHER, kinds
from waybill.partition.rows import Rows
from waybill.partition.table_layout import TableLayout
from waybill.partition.task import row_builder, rows_in_table
from waybill.quarantine.offsets import by_topic_partition
from waybill.quarantine.report import StayedMessages

__all__ = ["Reparser", "Stayed"]

_EXAMPLE_LENGTH = 200
_MOST_KINDS = 1000


class Reparser:
    """Makes of the quarantine's rows what a partition run by today's config would make of their messages."""

    def __init__(self, reading: Reading, generation: int, now: datetime, table: TableLayout) -> None:
        """`now`: what the bounds of event times are relative to."""
        self.rows = rows_in_table(reading, table)
        self._builder = row_builder(reading, generation, now, self.rows)

    def parse(self, rows: pa.RecordBatch) -> Iterator[tuple[TopicPartition, Rows]]:
        """The rows of each topic-partition: what goes to the table, and what stays."""
        for tp, places in by_topic_partition(rows):
            chosen = rows if len(places) == rows.num_rows else rows.take(pa.array(places))
            yield tp, self._builder.build(tp, _messages(chosen))


def _messages(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The messages that rows came from, in order of offset, as the archive's readers give them.

    A timestamp that the quarantine could not show is none: nothing could be put by it.
    """
    offsets = rows.column("offset").to_numpy()
    if np.any(offsets[1:] < offsets[:-1]):
        rows = rows.take(pa.array(np.argsort(offsets, kind="stable")))
    columns = {
        "offset": rows.column("offset"),
        "timestamp": pc.fill_null(rows.column("kafka_timestamp"), _NO_TIMESTAMP),
        "key": rows.column("key"),
        "value": rows.column("value"),
        "headers": rows.column("headers"),
    }
    messages = pa.RecordBatch.from_arrays([columns[field.name] for field in MESSAGE_SCHEMA], schema=MESSAGE_SCHEMA)
    # What the archive's format could not hold is no parser's to judge: it stays, with that reason.
    aside = pc.equal(rows.column("parser"), BackupFormat.TEXT.value)
    if not pc.any(aside).as_py():
        return messages
    why = pc.if_else(aside, rows.column("reason"), pa.scalar(None, pa.string()))
    return messages.append_column(pa.field(SET_ASIDE, pa.string()), why)


_NO_TIMESTAMP = pa.scalar(NO_TIMESTAMP_US, pa.int64()).cast(MESSAGE_SCHEMA.field("timestamp").type)


class Stayed:
    """Counts what cannot be read now either."""

    def __init__(self) -> None:
        self._found: dict[str, StayedMessages] = {}

    def add(self, tp: TopicPartition, quarantine: pa.RecordBatch) -> None:
        """Rows of one topic-partition that the parser refused."""
        if not quarantine.num_rows:
            return
        found = kinds(quarantine.column("reason"))
        for counted in pc.value_counts(found).to_pylist():
            kind = counted["values"]
            label = kind if kind in self._found or len(self._found) < _MOST_KINDS else OTHER
            if label not in self._found:
                row = quarantine.slice(found.index(kind).as_py(), 1)
                text = row.column("reason")[0].as_py().removeprefix(f"{kind}: ")[:_EXAMPLE_LENGTH]
                self._found[label] = StayedMessages(label, 0, f"{tp}@{row.column('offset')[0]}: {text}")
            self._found[label].messages += counted["counts"]

    def result(self) -> list[StayedMessages]:
        """By kind, most first."""
        return sorted(self._found.values(), key=lambda each: (-each.messages, each.reason))
