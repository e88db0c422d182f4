"""The index object: its rows are read in step with the messages; invalid index objects are rejected."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import record_lists

from waybill.archive.chain.object_index import INDEX_SCHEMA, ObjectFigures, ObjectIndex, ObjectIndexWriter
from waybill.base.errors import DamagedObject, DocumentTooNew
from waybill.records.batches.decode import decode
from waybill.records.batches.encode import Record, encode_batch
from waybill.records.batches.message_rows import MESSAGE_SCHEMA

FIGURES = ObjectFigures(
    first_offset=5,
    next_offset=900,
    messages=0,
    set_aside=0,
    size_bytes=3,
    sha256="ab" * 32,
    leader_epoch=7,
    min_timestamp_ms=-1,
    max_timestamp_ms=1_700_000_000_000,
    topic_id="topic",
    delimiter="0a",
)


def messages_of(records: list[Record]) -> pa.RecordBatch:
    (batch,) = decode(encode_batch(records), where="test")
    return batch


def build_index(*batches: tuple[pa.RecordBatch, list[str | None] | None]) -> bytes:
    writer = ObjectIndexWriter()
    for messages, reasons in batches:
        writer.add(messages, None if reasons is None else pa.array(reasons, pa.string()))
    return writer.finish(replace(FIGURES, messages=writer.messages, set_aside=writer.set_aside))


def dense(count: int, first: int = 0) -> pa.RecordBatch:
    return messages_of([Record(first + i, -1, None, b"v", []) for i in range(count)])


@given(record_lists(max_size=8), st.data())
def test_rows_are_read_back_in_step_with_the_messages(records: list[Record], draw: st.DataObject) -> None:
    reasons = draw.draw(st.lists(st.sampled_from([None, "why: x"]), min_size=len(records), max_size=len(records)))
    index = ObjectIndex(build_index((messages_of(records), reasons)), "test")
    assert index.figures == replace(FIGURES, messages=len(records), set_aside=len(records) - reasons.count(None))
    rows, found, held = index.rows(), [], 0
    for wanted in draw.draw(st.lists(st.integers(1, 4), max_size=4)):
        for piece, stored in rows.take(wanted):
            assert piece.column("set_aside").null_count == stored
            found += piece.to_pylist()
            held += stored
    found += [row for piece in rows.rest() for row in piece.to_pylist()]
    assert [row["offset"] for row in found] == [record.offset for record in records]
    assert [row["is_tombstone"] for row in found] == [record.value is None for record in records]
    for row, record, reason in zip(found, records, reasons, strict=True):
        aside = row["set_aside"]
        assert (aside is None) == (reason is None)
        if aside is not None:
            assert (aside["key"], aside["value"], aside["reason"]) == (record.key, record.value, reason)
            assert [(pair["key"], pair["value"]) for pair in aside["headers"]] == list(record.headers)


def test_a_million_messages_need_few_bytes() -> None:
    writer, batch = ObjectIndexWriter(), dense(10_000)
    for first in range(0, 1_000_000, 10_000):
        offsets = pa.array(np.arange(first, first + 10_000))
        writer.add(pa.RecordBatch.from_arrays([offsets, *batch.columns[1:]], schema=MESSAGE_SCHEMA), None)
        assert writer.size_bytes < 3 << 20
    data = writer.finish(replace(FIGURES, messages=1_000_000))
    assert len(data) < 100_000
    assert sum(piece.num_rows for piece in ObjectIndex(data, "test").rows().rest()) == 1_000_000


def test_messages_that_are_set_aside_count_in_the_size() -> None:
    writer, noise = ObjectIndexWriter(), Random(1).randbytes
    for offset in range(3):
        writer.add(messages_of([Record(offset, -1, None, noise(5_000_000), [])]), pa.array(["why: x"]))
        assert writer.size_bytes > 5_000_000 * (offset + 1)


def test_messages_that_are_set_aside_are_read_a_few_at_a_time_even_if_they_compress_well() -> None:
    """These 100 MB compress to almost nothing."""
    writer = ObjectIndexWriter()
    for offset in range(100):
        writer.add(messages_of([Record(offset, -1, None, b"x" * 1_000_000, [])]), pa.array(["why: x"]))
    assert writer.size_bytes < 4 << 20
    pieces = list(ObjectIndex(writer.finish(replace(FIGURES, messages=100, set_aside=100)), "test").rows().rest())
    assert max(piece.num_rows for piece in pieces) <= 4
    assert sum(piece.num_rows for piece in pieces) == 100


def test_an_index_without_messages_has_no_rows() -> None:
    index = ObjectIndex(build_index(), "test")
    assert list(index.rows().rest()) == []
    assert list(index.rows().take(1)) == []


def test_other_parquet_readers_can_read_an_index() -> None:
    table = pq.read_table(io.BytesIO(build_index((dense(3), None))))
    assert table.column("offset").to_pylist() == [0, 1, 2]


def foreign(version: object, **fields: object) -> bytes:
    sink = io.BytesIO()
    schema = INDEX_SCHEMA.with_metadata({"waybill": json.dumps({"v": version, **fields})})
    pq.write_table(schema.empty_table(), sink)
    return sink.getvalue()


def test_an_index_of_a_newer_version_raises() -> None:
    with pytest.raises(DocumentTooNew, match="written by a newer Waybill"):
        ObjectIndex(foreign(2, anything=1), "test")


@pytest.mark.parametrize(
    "data",
    [b"", b"PAR1", build_index((dense(3), None))[:-20], foreign(None), foreign(1), foreign(1, first_offset=1)],
)
def test_invalid_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(DamagedObject, match="is not an index"):
        ObjectIndex(data, "test")
