"""Files of the `files` sink: their bytes follow from the rows alone, not from the batches of rows."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.archive.chain.span import Span
from waybill.config.models.enums import Compression, FileFormat, SequenceFileKey
from waybill.config.models.sink import FilesFormat
from waybill.config.names import FileExtension, FileName, SinkPeriod, TopicPartition
from waybill.tables.partition.files_sink.encoders import cut_rows, encode_file
from waybill.tables.partition.partition_plan import pack
from waybill.tables.partition.rows import TABLE_ROWS

PERIOD = SinkPeriod("t", datetime(2026, 1, 1, tzinfo=UTC), by_hour=True)
FORMATS = [
    FilesFormat(),
    FilesFormat(compression=Compression.NONE),
    FilesFormat(name=FileFormat.SEQUENCEFILE, key=SequenceFileKey.LEGACY),
    FilesFormat(name=FileFormat.SEQUENCEFILE, compression=Compression.ZSTD),
    FilesFormat(name=FileFormat.TEXT),
    FilesFormat(name=FileFormat.TEXT, compression=Compression.GZIP),
]


def rows(count: int, size: int = 50) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "topic": "t",
                "partition": 0,
                "offset": n,
                "kafka_timestamp": None,
                "key": b"k%d" % n if n % 3 else None,
                "headers": [{"key": "h", "value": b"%d" % n}] * (n % 3),
                "value": hashlib.sha256(b"%d" % n).hexdigest().encode() * (n * 7 % size),
                "event_time": PERIOD.start,
                "message_id": f"id-{n}",
                "generation": 1,
            }
            for n in range(count)
        ],
        schema=TABLE_ROWS,
    )


ROWS = rows(400)


@given(cuts=st.lists(st.integers(0, 400), max_size=8), piece_bytes=st.sampled_from([1, 100, 5000, 60_000, 1 << 30]))
def test_pieces_do_not_depend_on_the_batches_of_the_input(cuts: list[int], piece_bytes: int) -> None:
    bounds = [0, *sorted(cuts), 400]
    tables = [ROWS.slice(a, b - a) for a, b in pairwise(bounds)]
    pieces = list(cut_rows(tables, piece_bytes))
    assert [p.num_rows for p in pieces] == [p.num_rows for p in cut_rows([ROWS], piece_bytes)]
    assert pa.Table.from_batches(pieces) == ROWS
    assert all(piece.num_rows for piece in pieces)
    if piece_bytes == 1:
        assert len(pieces) == 400


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: f"{kind.name}-{kind.codec}")
def test_bytes_of_a_file_do_not_depend_on_the_batches_of_the_input(tmp_path: Path, kind: FilesFormat) -> None:
    name = FileName(PERIOD, 1, 0, 0, kind.extension)
    whole, in_pieces, other_plan = (tmp_path / n for n in ("whole", "in_pieces", "other_plan"))
    pieces = [ROWS.slice(at, 7) for at in range(0, 400, 7)]
    assert encode_file(whole, kind, name, "plan", [ROWS]) == encode_file(in_pieces, kind, name, "plan", pieces) == 400
    assert whole.read_bytes() == in_pieces.read_bytes()
    encode_file(other_plan, kind, name, "another plan", [ROWS])
    is_sequence_file = kind.name is FileFormat.SEQUENCEFILE
    assert (other_plan.read_bytes() == whole.read_bytes()) is not is_sequence_file, (
        "a producer cannot predict the sync marker"
    )


def test_a_parquet_file_has_all_rows_and_columns_unchanged(tmp_path: Path) -> None:
    local = tmp_path / "file"
    encode_file(local, FilesFormat(), FileName(PERIOD, 1, 0, 0, FileExtension.PARQUET), "plan", [ROWS])
    assert pq.read_table(local) == ROWS


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.just("t"), st.integers(0, 3)),
        st.lists(st.tuples(st.integers(1, 50), st.integers(0, 100)), max_size=12),
        max_size=4,
    ),
    st.integers(1, 300),
)
def test_spans_of_a_topic_partition_in_one_task_follow_each_other(
    chains: dict[TopicPartition, list[tuple[int, int]]], task_bytes: int
) -> None:
    """So one range of offsets identifies what the task reads of a topic-partition."""
    spans: dict[TopicPartition, list[Span]] = {}
    for tp, lengths in chains.items():
        at = 0
        for length, size in lengths:
            spans.setdefault(tp, []).append(Span(tp, f"{tp}-{at}", at, at + length, size))
            at += length
    for task in pack(spans, task_bytes):
        for tp in spans:
            own = [span for span in task if span.tp == tp]
            assert all(a.next_offset == b.first_offset for a, b in pairwise(own))
