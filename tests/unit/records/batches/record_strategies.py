"""Records for tests: strategies for Hypothesis, and batches as kafka-python writes and reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from waybill.records.batches import Codec
from waybill.records.batches.encode import Record, encode_batch, to_records

CODECS = list(Codec)

_payloads = st.none() | st.binary(max_size=40) | st.builds(lambda n: b"x" * n, st.integers(0, 400))
_headers = st.lists(st.tuples(st.sampled_from(["", "a", "a", "trace-id", "größe"]), _payloads), max_size=3)
_timestamps = st.integers(-1, 2_000_000_000_000) | st.just(-1)


@st.composite
def record_lists(draw: st.DrawFn, max_size: int = 6, first_offset: int | None = None) -> list[Record]:
    """Draw records with growing offsets, some missing as after compaction."""
    offset = draw(st.integers(0, 1 << 40)) if first_offset is None else first_offset
    records = []
    for _ in range(draw(st.integers(1, max_size))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 100]))
        records.append(Record(offset, draw(_timestamps), draw(_payloads), draw(_payloads), tuple(draw(_headers))))
        offset += 1
    return records


@st.composite
def batch_sequences(draw: st.DrawFn, max_batches: int = 4) -> tuple[bytes, list[Record]]:
    """Draw the bytes of some batches of any codec, and the messages in them."""
    data, messages, offset = b"", [], 0
    for _ in range(draw(st.integers(1, max_batches))):
        records = draw(record_lists(first_offset=offset))
        data += encode_batch(records, codec=draw(st.sampled_from(CODECS)))
        messages += records
        offset = records[-1].offset + 1
    return data, messages


def write_with_kafka_python(records: Sequence[Record], codec: Codec) -> bytes:
    """Return the batch that kafka-python's producer would send, with the base offset that a broker would set."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=int(codec), batch_size=1 << 30)
    for record in records:
        builder.append(record.timestamp_ms, record.key, record.value, list(record.headers))
    builder.close()
    return records[0].offset.to_bytes(8, "big") + bytes(builder.buffer())[8:]


def read_with_kafka_python(data: bytes) -> list[Record]:
    """Return the messages that kafka-python reads."""
    return [
        Record(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
        for batch in MemoryRecords(data)
        if not batch.is_control_batch
        for record in batch
    ]


def records_in(batches: Iterable[Any]) -> list[Record]:
    """Return the messages that `decode` yielded, as records."""
    return [record._replace(headers=tuple(record.headers)) for batch in batches for record in to_records(batch)]
