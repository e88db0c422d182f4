"""The offset map of a restore: the target offset of each archived message.

The map of a topic-partition consists of runs: messages whose archived offsets follow each other without a gap, as do
their target offsets. It is stored in parts, Parquet objects that are created if absent as the restore proceeds. A part
is written after the target has acknowledged its messages. The content of a part follows from the archive and the plan,
so parts of rival processes agree where they overlap.

A restore also continues at parts: the last part that begins at or before the end of the target's log shows the archived
offset from which to count.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from waybill.base.errors import ObjectExists
from waybill.config.names import TopicPartition, restore_map_key, restore_map_place, restore_map_prefix
from waybill.services.store import Store

if TYPE_CHECKING:
    import pyarrow as pa


class RestorePlace(NamedTuple):
    """Where a restore can continue: an archived offset, and the target offset of the next message from there on."""

    offset: int
    target_offset: int


class Run(NamedTuple):
    """Messages `[offset, offset + messages)` of the archive, from `target_offset` on in the target."""

    offset: int
    target_offset: int
    messages: int


def map_schema() -> pa.Schema:
    """Return the schema of a part: one row for each run."""
    import pyarrow as pa  # it takes half a second to import, and `status` does not need it

    return pa.schema(
        [
            pa.field("topic", pa.string(), nullable=False),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("target_topic", pa.string(), nullable=False),
            pa.field("target_offset", pa.int64(), nullable=False),
            pa.field("messages", pa.int64(), nullable=False),
        ]
    )


class MapBuilder:
    """Collects the runs of one topic-partition from a place on, and writes them as parts."""

    def __init__(
        self, store: Store, restore: str, source: TopicPartition, target_topic: str, place: RestorePlace
    ) -> None:
        self._store, self._restore, self._source, self._target_topic = store, restore, source, target_topic
        self._begin = self._end = place
        self._runs: list[Run] = []

    @property
    def messages(self) -> int:
        """The number of messages that the next part will have."""
        return self._end.target_offset - self._begin.target_offset

    def add(self, offset: int, messages: int) -> None:
        """Add messages whose archived offsets follow each other. They come next in the target."""
        last = self._runs[-1] if self._runs else None
        if last is not None and last.offset + last.messages == offset:
            self._runs[-1] = last._replace(messages=last.messages + messages)
        else:
            self._runs.append(Run(offset, self._end.target_offset, messages))
        self._end = RestorePlace(offset + messages, self._end.target_offset + messages)

    def write(self, next_offset: int) -> None:
        """Write the added messages as a part, which ends before the archived offset `next_offset`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if next_offset <= self._begin.offset:
            return
        count = len(self._runs)
        table = pa.Table.from_arrays(
            [
                pa.array([self._source.topic] * count, pa.string()),
                pa.array([self._source.partition] * count, pa.int32()),
                pa.array([run.offset for run in self._runs], pa.int64()),
                pa.array([self._target_topic] * count, pa.string()),
                pa.array([run.target_offset for run in self._runs], pa.int64()),
                pa.array([run.messages for run in self._runs], pa.int64()),
            ],
            schema=map_schema(),
        )
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        key = restore_map_key(self._store.prefix, self._restore, self._source, *self._begin)
        # A rival may have written a part. If it is shorter, a restore continues a little earlier.
        with suppress(ObjectExists):
            self._store.create_if_absent(key, buffer.getvalue())
        self._begin = self._end = RestorePlace(next_offset, self._end.target_offset)
        self._runs = []


def find_place(
    store: Store, restore: str, source: TopicPartition, target_offset: int, start: RestorePlace
) -> RestorePlace:
    """Return the beginning of the last part at or before an offset of the target; `start` if there is none."""
    found = start
    for key in store.keys(restore_map_prefix(store.prefix, restore, source)):
        numbers = restore_map_place(key)
        if numbers is not None and found.target_offset <= numbers[1] <= target_offset:
            found = RestorePlace(*numbers)
    return found


def find_mapped_end(store: Store, restore: str, source: TopicPartition) -> int:
    """Return the target offset after the last message of the map; 0 if there is no map."""
    return max((run.target_offset + run.messages for run in _read_runs(store, restore, source)), default=0)


class OffsetMap:
    """The map of one topic-partition, read from its parts."""

    def __init__(self, runs: list[Run], end: int) -> None:
        self._runs = sorted(runs)
        self._offsets = [run.offset for run in self._runs]
        self._end = end
        """The target offset after the last restored message."""

    def translate(self, offset: int) -> int:
        """Return where a consumer continues in the target: at the first message at or after an archived offset.

        Returns the end of the restored messages if there is no later message.
        """
        index = bisect_right(self._offsets, offset) - 1
        if index >= 0:
            run = self._runs[index]
            if offset < run.offset + run.messages:
                return run.target_offset + offset - run.offset
        if index + 1 < len(self._runs):
            return self._runs[index + 1].target_offset
        return self._end


def read_map(store: Store, restore: str, source: TopicPartition, end: int) -> OffsetMap:
    """Return the offset map of a topic-partition. `end`: the target offset after the last restored message."""
    return OffsetMap(list(_read_runs(store, restore, source)), end)


def _read_runs(store: Store, restore: str, source: TopicPartition) -> Iterator[Run]:
    import pyarrow.parquet as pq

    for key in store.keys(restore_map_prefix(store.prefix, restore, source)):
        table = pq.read_table(io.BytesIO(store.read(key)), columns=["offset", "target_offset", "messages"])
        yield from map(Run, *(column.to_pylist() for column in table.columns))
