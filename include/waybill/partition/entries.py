"""Data files that are written down before they are committed, and found again by whoever commits them.

A file's footer tells its statistics. What it does not tell is written down with its path: its partition, since a bucket
follows from no bounds, and whether it is in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from waybill.partition.table_layout import TableLayout

__all__ = ["Entry", "entries_of", "look_up"]

_THREADS = 8

Entry = Sequence[Any]
"""Path, partition and order of a file, as JSON has it."""


def entries_of(files: Iterable[DataFile]) -> list[Entry]:
    """What is to be written down of files."""
    return [
        [
            file.file_path,
            [_written(file.partition[at]) for at in range(len(file.partition))],
            file.sort_order_id is not None,
        ]
        for file in files
    ]


def look_up(table: Table, entries: Iterable[Entry]) -> list[DataFile]:
    """The manifest entries of files of `table`. Raises `FileNotFoundError` when one is gone."""
    layout = TableLayout.of(table)

    def read(entry: Entry) -> DataFile:
        path, values, is_sorted = entry
        file = table.io.new_input(path)
        with file.open() as stream:
            metadata = pq.read_metadata(stream)
        partition = tuple(map(_read, values))
        return layout.data_file(path, len(file), metadata, partition=partition, is_sorted=is_sorted)

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(read, entries))


def _written(value: Any) -> Any:
    """A value of a partition in JSON: as it is, or under the name of a type that JSON does not have."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return {"decimal": str(value)} if isinstance(value, Decimal) else value


def _read(written: Any) -> Any:
    """The inverse of `_written`."""
    if not isinstance(written, dict):
        return written
    return bytes.fromhex(written["bytes"]) if "bytes" in written else Decimal(written["decimal"])
