"""Events as bench/decode.py makes them, by the million: values for a producer, and backup objects without one.

Every event has 453 bytes, an id and an event time of its own; the rest is that of one of 20,000 templates. They are
made by whole arrays, at some microseconds an event, since a benchmark should not spend its minutes on its input.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from decode import MESSAGE_BYTES, message

from waybill.names import BackupName, TopicPartition
from waybill.records import HEADER_BYTES, Codec, read_header
from waybill.records.compression import compress
from waybill.records.encode import Record, encode_batch
from waybill.records.framing import BatchHeader, pack_batch

if TYPE_CHECKING:
    from waybill.store import Store

    Values = np.ndarray[Any, np.dtype[np.uint8]]

__all__ = ["FIRST_MS", "MS_APART", "put_archive", "values"]

FIRST_MS = 1_700_000_000_000
MS_APART = 13
"""Event times grow by this on average: two million events are seven hours."""

_TEMPLATES = 20_000
_JITTER_MS = 1000
_ID_AT, _ID_BYTES = 13, 32
_TIME_AT, _TIME_BYTES = 60, 13
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_POWERS = 10 ** np.arange(_TIME_BYTES - 1, -1, -1)
_UPLOADS = 4


@cache
def _templates() -> Values:
    chance = random.Random(7)
    made = np.frombuffer(b"".join(message(n, chance) for n in range(_TEMPLATES)), np.uint8)
    found = made.reshape(_TEMPLATES, MESSAGE_BYTES)
    assert bytes(found[0, :_ID_AT]) == b'{"event_id":"'
    assert bytes(found[0, _ID_AT + _ID_BYTES : _TIME_AT]) == b'","event_time":'
    return found


def values(first: int, count: int) -> Values:
    """The events numbered from `first` on, a row each; the same number is always the same event."""
    chance = np.random.default_rng(first)
    numbers = np.arange(first, first + count)
    made = _templates()[numbers % _TEMPLATES]
    made[:, _ID_AT : _ID_AT + _ID_BYTES] = _HEX[chance.integers(0, 16, (count, _ID_BYTES), dtype=np.uint8)]
    times_ms = FIRST_MS + numbers * MS_APART + chance.integers(0, _JITTER_MS, count)
    made[:, _TIME_AT : _TIME_AT + _TIME_BYTES] = times_ms[:, None] // _POWERS % 10 + ord("0")
    return made


class _Shape(NamedTuple):
    """A record batch of so many events, with room for their values."""

    header: BatchHeader
    records: Values
    value_bytes: Values
    """Where in `records` the bytes of each value are."""


@cache
def _shape(count: int) -> _Shape:
    rows = values(0, count)
    batch = encode_batch([Record(n, FIRST_MS + n, b"%08d" % n, row.tobytes()) for n, row in enumerate(rows)])
    records = batch[HEADER_BYTES:]
    starts, at = [], 0
    for row in rows:
        at = records.index(row.tobytes(), at)
        starts.append(at)
        at += MESSAGE_BYTES
    where = np.array(starts)[:, None] + np.arange(MESSAGE_BYTES)
    return _Shape(read_header(batch, 0, "shape"), np.frombuffer(records, np.uint8), where)


def _batches(first: int, count: int, first_offset: int, per_batch: int) -> Iterator[bytes]:
    """zstd record batches of the events `[first, first + count)`, at the offsets from `first_offset` on."""
    for start in range(0, count, per_batch):
        size = min(per_batch, count - start)
        shape = _shape(size)
        records = shape.records.copy()
        records[shape.value_bytes] = values(first + start, size)
        at_ms = FIRST_MS + (first + start) * MS_APART
        header = shape.header._replace(
            base_offset=first_offset + start,
            attributes=int(Codec.ZSTD),
            base_timestamp_ms=at_ms,
            max_timestamp_ms=at_ms + size - 1,
        )
        yield pack_batch(header, compress(Codec.ZSTD, records.tobytes()))


def put_archive(
    store: Store, topic: str, *, messages: int, objects: int, partitions: int = 1, per_batch: int = 140
) -> tuple[int, list[int]]:
    """Backup objects of as many messages, in all and evenly spread, as ingest would leave them.

    Returns their bytes, and where the chain of each topic-partition ends.

    Topic-partitions take turns in time: each has events of the whole stretch.
    """
    jobs = []
    offsets = [0] * partitions
    for number, (start, end) in enumerate(pairwise(messages * n // objects for n in range(objects + 1))):
        tp = TopicPartition(topic, number % partitions)
        jobs.append((tp, start, end - start, offsets[tp.partition]))
        offsets[tp.partition] += end - start

    def put(tp: TopicPartition, first: int, count: int, offset: int) -> int:
        content = b"".join(_batches(first, count, offset, per_batch))
        store.create_if_absent(BackupName(tp.topic, 1, tp.partition, offset).key(store.prefix), content)
        return len(content)

    with ThreadPoolExecutor(_UPLOADS) as pool:
        return sum(pool.map(lambda job: put(*job), jobs)), offsets
