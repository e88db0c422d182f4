"""The rows of a quarantine that count: final, and not moved to the table by a retry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog

from waybill.config import Stream
from waybill.errors import ProgressLost
from waybill.names import retry_key
from waybill.quarantine.choice import Choice
from waybill.quarantine.files import plan_files, reachable, read_file
from waybill.quarantine.offsets import Offsets, by_topic_partition
from waybill.quarantine.record import find_retry, read_offsets
from waybill.store import Store
from waybill.tables import Progress, StreamTables, load_tables, read_progress, read_retries

__all__ = ["View", "moved_offsets", "open_view", "retries_of"]


@dataclass(frozen=True, slots=True)
class View:
    """A quarantine as it was loaded."""

    tables: StreamTables
    progress: Progress
    """The table's. Rows at or beyond it are not final: the run that wrote them has not committed the table's rows."""
    moved: Offsets
    """Messages that are in the table by a retry that has not dropped them from the quarantine yet."""

    @classmethod
    def of(cls, store: Store, name: str, stream: Stream, tables: StreamTables) -> Self:
        """Of tables as they are loaded, the quarantine after the table (see `moved_offsets`)."""
        progress = read_progress(tables.main.metadata, ".".join(tables.main.name()))
        return cls(tables, progress, moved_offsets(store, name, stream, tables))

    def rows(self, choice: Choice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows that are meant, a few megabytes at a time and none empty.

        `columns`: only these; topic, partition, offset and reason must be among them.

        Raises `CommitConflict` when the table has moved on so far that its files are gone, `StoreUnavailable`.
        """
        table = self.tables.quarantine
        with reachable(table):
            for batch in (b for file in plan_files(table, choice.condition) for b in read_file(table, file, columns)):
                wanted = choice.mask(batch) & self._counts(batch)
                if wanted.any():
                    yield batch if wanted.all() else batch.filter(pa.array(wanted))

    def _counts(self, rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        counts = ~self.moved.mask(rows)
        offsets = rows.column("offset").to_numpy()
        for tp, places in by_topic_partition(rows):
            counts[places] &= offsets[places] < self.progress.get(tp, 0)
        return counts


def open_view(store: Store, catalog: Catalog, name: str, stream: Stream) -> View | None:
    """The quarantine of stream `name` as it is now; None before its first partition run."""
    tables = load_tables(catalog, stream)
    return None if tables is None else View.of(store, name, stream, tables)


def moved_offsets(store: Store, name: str, stream: Stream, tables: StreamTables) -> Offsets:
    """The messages that retries have moved to the table, and that are rows of the quarantine still.

    `tables`: as `load_tables` loads them, so that the quarantine has taken part in no retry that the table has not.

    Raises `ProgressLost` when what such a retry moved is written down nowhere any more.
    """
    main, quarantine = retries_of(tables)
    moved = Offsets()
    for number in range(quarantine, main):
        key = retry_key(store.prefix, name, stream.generation, str(tables.main.metadata.table_uuid), number)
        retry = find_retry(store, key)
        if retry is None:
            raise ProgressLost(
                f"{key} is gone: table {'.'.join(tables.main.name())} has what this retry moved, and nobody can say "
                f"which rows of the quarantine these are. Restore the object"
            )
        moved = moved.union(read_offsets(store, retry))
    return moved


def retries_of(tables: StreamTables) -> tuple[int, int]:
    """How many retries the table and its quarantine have taken part in."""
    return (
        read_retries(tables.main.metadata, ".".join(tables.main.name())),
        read_retries(tables.quarantine.metadata, ".".join(tables.quarantine.name())),
    )
