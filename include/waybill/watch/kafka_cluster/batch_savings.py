"""What compression, or larger batches, would save in a topic: measured by encoding a sample of its messages again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from waybill.records.batches.decode import decode
from waybill.records.batches.encode import Record, encode_batch, to_records
from waybill.records.batches.framing import Codec, Frame

BATCH_BYTES = (None, 64 << 10, 1 << 20)
"""Sizes of batches before compression that are tried; None: the batches as they were sent."""
_CODECS = (Codec.NONE, Codec.LZ4, Codec.ZSTD)
_RECORD_BYTES = 16
"""About what a record takes beside its key and value."""


@dataclass(frozen=True, slots=True)
class Saving:
    """The sample with another codec or other batches."""

    codec: Codec
    batch_bytes: int | None
    size_bytes: int
    share: float
    """Of the bytes of the sample that would be saved; negative if it would be larger."""


def measure_savings(sample: Sequence[Frame], where: str) -> list[Saving]:
    """Return what each codec and size of batches would make of a sample, the smallest result first.

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
    """Yield batches of about so many bytes before compression. A message that is larger is a batch of its own."""
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
