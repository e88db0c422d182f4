"""How many bytes compression or larger batches would save in a topic, measured on a sample of its messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from waybill.records.batches.decode import decode
from waybill.records.batches.encode import Record, encode_batch, to_records
from waybill.records.batches.framing import Codec, Frame

BATCH_BYTES = (None, 64 << 10, 1 << 20)
"""Sizes of batches (before compression) that are tried; None: the original batches."""
_CODECS = (Codec.NONE, Codec.LZ4, Codec.ZSTD)
_RECORD_BYTES = 16
"""The approximate bytes of a record without its key and value."""


@dataclass(frozen=True, slots=True)
class Saving:
    """The sample with another codec or other batches."""

    codec: Codec
    batch_bytes: int | None
    size_bytes: int
    share: float
    """The share of the sample's bytes that would be saved; negative if the sample would be larger."""


def measure_savings(sample: Sequence[Frame], where: str) -> list[Saving]:
    """Return the size of a sample with each codec and batch size, the smallest result first.

    The sample holds batches of one topic-partition, in order; `where` names it in errors. Codecs have the default level
    of Kafka's Java client. Raises `CorruptBatch`.
    """
    stored = sum(len(frame.data) for frame in sample)
    if not stored:
        return []
    batches = [[record for part in decode([frame], where=where) for record in to_records(part)] for frame in sample]
    sent = [batch for batch in batches if batch]
    records = [record for batch in sent for record in batch]
    found = []
    for batch_bytes in BATCH_BYTES:
        tried = sent if batch_bytes is None else list(_batches(records, batch_bytes))
        for codec in _CODECS:
            size = sum(len(encode_batch(batch, codec=codec)) for batch in tried)
            found.append(Saving(codec, batch_bytes, size, 1 - size / stored))
    return sorted(found, key=lambda each: each.size_bytes)


def _batches(records: Sequence[Record], batch_bytes: int) -> Iterator[list[Record]]:
    """Yield batches of about `batch_bytes` before compression. A larger message is a separate batch."""
    batch: list[Record] = []
    size = 0
    for record, taken in zip(records, _sizes(records), strict=True):
        if batch and size + taken > batch_bytes:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += taken
    if batch:
        yield batch


def _sizes(records: Iterable[Record]) -> Iterator[int]:
    for record in records:
        headers = sum(len(key) + len(value or b"") for key, value in record.headers)
        yield _RECORD_BYTES + len(record.key or b"") + len(record.value or b"") + headers
