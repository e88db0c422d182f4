"""Reading the archive for a replay request."""

from __future__ import annotations

from collections.abc import Callable, Generator

from waybill.archive.chain import walk_chain
from waybill.archive.read_ahead import ReadAhead
from waybill.archive.spans import read_span, spans_from
from waybill.names import TopicPartition
from waybill.replay.matching import Wanted
from waybill.replay.message import Piece
from waybill.store import Store

__all__ = ["read_archived"]


def read_archived(
    store: Store,
    generation: int,
    tp: TopicPartition,
    wanted: Wanted,
    first_offset: int,
    next_offset: int,
    *,
    use_index: bool = True,
    should_stop: Callable[[], bool] = lambda: False,
) -> Generator[Piece, None, None]:
    """Yield the wanted messages with offsets in `[first_offset, next_offset)`, each once, in order of offset."""
    objects = walk_chain(store, generation, tp, from_offset=first_offset, committed_offset=next_offset)
    spans = list(spans_from(tp, objects, first_offset))
    with ReadAhead(store, spans) as ahead:
        for span in spans:
            if span.first_offset >= next_offset:
                return
            for batch in read_span(store, span, ahead=ahead):
                offset = int(batch.column("offset")[-1].as_py()) + 1
                found = [each for each in wanted.select(tp, batch) if each.offset < next_offset]
                yield Piece(found, min(offset, next_offset))
            yield Piece([], min(span.next_offset, next_offset))
            if should_stop():
                return
