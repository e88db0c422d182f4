"""Small batches of messages put together, before anything is done with them that costs by the batch.

An archive that is cut often has objects of a few messages. Parsing, looking at and holding rows takes some fifty calls
of Arrow for each batch, whatever its size (docs/decisions/0011). A task reads its topic-partitions in turns, so each
has messages waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from waybill.names import TopicPartition

__all__ = ["ENOUGH_BYTES", "ENOUGH_ROWS", "MOST_HELD_BYTES", "gathered"]

ENOUGH_ROWS = 8192
ENOUGH_BYTES = 2 << 20
"""A batch of as much is passed on as it is."""

MOST_HELD_BYTES = 16 << 20
"""Of all topic-partitions."""

Batches = Iterator[tuple[TopicPartition, pa.RecordBatch]]


def gathered(batches: Iterable[tuple[TopicPartition, pa.RecordBatch]]) -> Batches:
    """The same messages in fewer batches; those of a topic-partition in the same order.

    If `batches` raises, what waited is not passed on.
    """
    held: dict[TopicPartition, _Held] = {}
    held_bytes = 0
    for tp, batch in batches:
        waiting = held.get(tp)
        if waiting is not None and not waiting.takes(batch):
            held_bytes -= waiting.size_bytes
            yield tp, held.pop(tp).together()
        waiting = held.setdefault(tp, _Held())
        waiting.add(batch)
        held_bytes += batch.nbytes
        if waiting.is_enough:
            held_bytes -= waiting.size_bytes
            yield tp, held.pop(tp).together()
        elif held_bytes > MOST_HELD_BYTES:
            yield from _all_of(held)
            held_bytes = 0
    yield from _all_of(held)


def _all_of(held: dict[TopicPartition, _Held]) -> Batches:
    while held:
        tp, waiting = held.popitem()
        yield tp, waiting.together()


class _Held:
    """Batches of one topic-partition and one schema, in order."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self.size_bytes = 0

    def takes(self, batch: pa.RecordBatch) -> bool:
        """Whether there is room, and the columns are the same."""
        if self._rows + batch.num_rows > ENOUGH_ROWS or self.size_bytes + batch.nbytes > ENOUGH_BYTES:
            return False
        return bool(batch.schema.equals(self._batches[0].schema))

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        self.size_bytes += batch.nbytes

    @property
    def is_enough(self) -> bool:
        return self._rows >= ENOUGH_ROWS or self.size_bytes >= ENOUGH_BYTES

    def together(self) -> pa.RecordBatch:
        return self._batches[0] if len(self._batches) == 1 else pa.concat_batches(self._batches)
