"""The files that a run has written, as a data file of the ledger."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from waybill.partition.alert import ROWS_PROPERTY
from waybill.partition.files import PartitionedWriter
from waybill.partition.table_layout import TableLayout
from waybill.partition.uploads import Uploads
from waybill.tables.ledger import LEDGER_ROWS, LedgerEntry, ledger_batch

__all__ = ["FILES_PROPERTY", "FILE_BYTES_PROPERTY", "figures_of", "stage_entries"]

FILES_PROPERTY = "waybill.files"
"""Of the snapshot of a run whose rows went to files: how many they are."""
FILE_BYTES_PROPERTY = "waybill.file_bytes"

_MEMORY_BYTES = 64 << 20


def stage_entries(ledger: Table, entries: Sequence[LedgerEntry], name: str) -> list[DataFile]:
    """Write the entries down, in a data file whose name begins with `name`; nothing for none. It is not committed."""
    with (
        tempfile.TemporaryDirectory(prefix="waybill-") as scratch,
        closing(Uploads(ledger.io)) as uploads,
    ):
        writer = PartitionedWriter(
            TableLayout.of(ledger),
            LEDGER_ROWS,
            memory_bytes=_MEMORY_BYTES,
            scratch=Path(scratch),
            uploads=uploads,
            name=name,
        )
        writer.add(ledger_batch(entries))
        files = writer.finish()
        uploads.wait()
    return files


def figures_of(entries: Sequence[LedgerEntry]) -> Mapping[str, str]:
    """Properties of the snapshot that commits them."""
    return {
        ROWS_PROPERTY: str(sum(entry.rows for entry in entries)),
        FILES_PROPERTY: str(len(entries)),
        FILE_BYTES_PROPERTY: str(sum(entry.size_bytes for entry in entries)),
    }
