"""What the format of a `files` sink cannot hold goes to quarantine, like what cannot be parsed: nothing is dropped."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from waybill.config.sink import FilesFormat
from waybill.partition.files_sink.encoders import make_refusal
from waybill.partition.rows import QUARANTINE_ROWS, Rows

__all__ = ["Sieve"]


class Sieve:
    """Moves rows that a format cannot hold. The same rows always go the same way."""

    def __init__(self, kind: FilesFormat, planned_at: datetime) -> None:
        self._name = str(kind.name)
        self._refusal = make_refusal(kind)
        self._planned_at = pa.scalar(planned_at, pa.timestamp("us", tz="UTC"))

    def sift(self, rows: Rows) -> Rows:
        """The rows that can be written, and the others as rows of the quarantine."""
        reasons = None if self._refusal is None or not rows.table.num_rows else self._refusal.refused(rows.table)
        if reasons is None:
            return rows
        unfit = pc.is_valid(reasons)
        moved = rows.table.filter(unfit)
        n = moved.num_rows
        given = {
            "reason": reasons.filter(unfit),
            "parser": pa.repeat(self._name, n),
            "quarantined_at": pa.repeat(self._planned_at, n),
        }
        columns = [given[name] if name in given else moved.column(name) for name in QUARANTINE_ROWS.names]
        quarantine = pa.RecordBatch.from_arrays(columns, schema=QUARANTINE_ROWS)
        return rows._replace(
            table=rows.table.filter(pc.invert(unfit)), quarantine=pa.concat_batches([rows.quarantine, quarantine])
        )
