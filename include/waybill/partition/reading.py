"""Reading spans of the archive, as the partition job and the data source do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from waybill.errors import ChainBroken, ChainGap, ObjectMissing
from waybill.log.framing import Frame, read_frames
from waybill.partition.plan import Span
from waybill.store import Store

__all__ = ["read_span"]


def read_span(store: Store, span: Span) -> Iterator[pa.RecordBatch]:
    """The messages of a span (`waybill.log.decode.MESSAGE_SCHEMA`), streamed: a few megabytes are in memory.

    Raises `ChainBroken` when the object is not there; its subclass `ChainGap` when it ends before the span does.
    """
    # numba takes a second to import, and the driver, which opens stores, decodes nothing.
    from waybill.log.decode import decode

    end = _End()
    try:
        with store.open(span.key) as stream:
            yield from decode(
                end.watch(read_frames(stream, span.key)),
                where=span.key,
                first_offset=span.first_offset,
                next_offset=span.next_offset,
            )
    except ObjectMissing as error:
        raise ChainBroken(f"{span.tp}: {error}; it was there when the run was planned") from error
    if end.next_offset < span.next_offset:
        raise ChainGap(
            f"{span.tp}: {span.key} ends at offset {end.next_offset}, and the chain goes on at {span.next_offset}"
        )


@dataclass(slots=True)
class _End:
    """Notes where the last record batch of an object ends."""

    next_offset: int = 0

    def watch(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            self.next_offset = frame.header.next_offset
            yield frame
