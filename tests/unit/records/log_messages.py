"""Messages for the tests of the log: strategies for Hypothesis, and batches as kafka-python writes and reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from waybill.records import Codec
from waybill.records.encode import Record, encode_batch, records_of

CODECS = list(Codec)

_payloads = st.none() | st.binary(max_size=40) | st.builds(lambda n: b"x" * n, st.integers(0, 400))
_headers = st.lists(st.tuples(st.sampled_from(["", "a", "a", "trace-id", "größe"]), _payloads), max_size=3)
_timestamps = st.integers(-1, 2_000_000_000_000) | st.just(-1)


@st.composite
def record_lists(draw: st.DrawFn, max_size: int = 6, first_offset: int | None = None) -> list[Record]:
    """Records with growing offsets, with gaps as after compaction."""
    offset = draw(st.integers(0, 1 << 40)) if first_offset is None else first_offset
    records = []
    for _ in range(draw(st.integers(1, max_size))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 100]))
        records.append(Record(offset, draw(_timestamps), draw(_payloads), draw(_payloads), tuple(draw(_headers))))
        offset += 1
    return records


@st.composite
def logs(draw: st.DrawFn, max_batches: int = 4) -> tuple[bytes, list[Record]]:
    """An object of some batches of any codec, and the messages in it."""
    data, messages, offset = b"", [], 0
    for _ in range(draw(st.integers(1, max_batches))):
        records = draw(record_lists(first_offset=offset))
        data += encode_batch(records, codec=draw(st.sampled_from(CODECS)))
        messages += records
        offset = records[-1].offset + 1
    return data, messages


def kafka_python_batch(records: Sequence[Record], codec: Codec) -> bytes:
    """The batch that kafka-python's producer would send; offsets start at 0 there, the broker sets the base offset."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=int(codec), batch_size=1 << 30)
    for record in records:
        builder.append(record.timestamp_ms, record.key, record.value, list(record.headers))
    builder.close()
    return records[0].offset.to_bytes(8, "big") + bytes(builder.buffer())[8:]


def kafka_python_reads(data: bytes) -> list[Record]:
    """The messages that kafka-python finds."""
    return [
        Record(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
        for batch in MemoryRecords(data)
        if not batch.is_control_batch
        for record in batch
    ]


def records_in(batches: Iterable[Any]) -> list[Record]:
    """What `decode` yielded, as records."""
    return [record._replace(headers=tuple(record.headers)) for batch in batches for record in records_of(batch)]
