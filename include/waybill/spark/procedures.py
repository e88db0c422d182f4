"""Iceberg's procedures, called through Spark SQL."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from waybill.errors import ProcedureFailed
from waybill.maintenance.procedures import Expired, Rewritten, RewrittenManifests
from waybill.store import ListedObject

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SparkProcedures"]

logger = logging.getLogger(__name__)

_CANDIDATES = "waybill_orphan_candidates"
_COMMITS = 4
_INSTANT = timedelta(milliseconds=1)
_CANDIDATE_SCHEMA = pa.schema([("file_path", pa.string()), ("last_modified", pa.timestamp("us", tz="UTC"))])


class SparkProcedures:
    """`waybill.maintenance.procedures.Procedures` on a session that knows `catalog` (see `waybill.spark.iceberg`).

    `now`: the clock by which candidates for removal are old.
    """

    def __init__(
        self, session: SparkSession, catalog: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._session = session
        self._catalog = catalog
        self._now = now

    def rewrite_data_files(self, table: str, *, sort: bool, target_file_bytes: int, min_input_files: int) -> Rewritten:
        """See the protocol. A large table is committed in up to four parts: what was done is kept if the rest fails."""
        options = {
            "target-file-size-bytes": target_file_bytes,
            "min-input-files": min_input_files,
            "partial-progress.enabled": "true",
            "partial-progress.max-commits": _COMMITS,
        }
        pairs = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
        row = self._call(
            "rewrite_data_files", table, f"strategy => '{'sort' if sort else 'binpack'}', options => map({pairs})"
        )
        return Rewritten(
            files_before=row["rewritten_data_files_count"],
            files_after=row["added_data_files_count"],
            bytes_before=row["rewritten_bytes_count"],
            failed_files=row["failed_data_files_count"],
        )

    def rewrite_manifests(self, table: str) -> RewrittenManifests:
        """See the protocol."""
        row = self._call("rewrite_manifests", table)
        return RewrittenManifests(row["rewritten_manifests_count"], row["added_manifests_count"])

    def expire_snapshots(self, table: str, *, older_than: datetime, keep_last: int) -> Expired:
        """See the protocol."""
        row = self._call(
            "expire_snapshots", table, f"older_than => {_timestamp(older_than)}, retain_last => {int(keep_last)}"
        )
        return Expired(
            data_files=row["deleted_data_files_count"],
            delete_files=row["deleted_position_delete_files_count"] + row["deleted_equality_delete_files_count"],
            manifests=row["deleted_manifest_files_count"],
            manifest_lists=row["deleted_manifest_lists_count"],
        )

    def remove_orphan_files(self, table: str, candidates: Sequence[tuple[str, ListedObject]]) -> list[str]:
        """See the protocol. Iceberg looks at the table's snapshots after this is called, and at these files alone."""
        now = self._now()
        # Iceberg refuses to look at files of the last day, by the machine's clock: their age is told in its terms.
        machine = datetime.now(UTC)
        rows = pa.table(
            [[path for path, _ in candidates], [machine - (now - entry.modified) for _, entry in candidates]],
            schema=_CANDIDATE_SCHEMA,
        )
        newest = max(entry.modified for _, entry in candidates)
        older_than = machine - (now - newest) + _INSTANT
        self._session.createDataFrame(rows).createOrReplaceTempView(_CANDIDATES)
        try:
            removed = self._rows(
                "remove_orphan_files",
                table,
                f"older_than => {_timestamp(older_than)}, file_list_view => '{_CANDIDATES}'",
            )
        finally:
            self._session.catalog.dropTempView(_CANDIDATES)
        return [row["orphan_file_location"] for row in removed]

    def _call(self, procedure: str, table: str, arguments: str = "") -> Row:
        (row,) = self._rows(procedure, table, arguments)
        return row

    def _rows(self, procedure: str, table: str, arguments: str) -> list[Row]:
        call = f"CALL {self._catalog}.system.{procedure}(table => '{self._catalog}.{table}'"
        call += f", {arguments})" if arguments else ")"
        logger.debug("%s", call)
        with _named(procedure, table):
            return self._session.sql(call).collect()


def _timestamp(at: datetime) -> str:
    return f"TIMESTAMP '{at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f} UTC'"


@contextmanager
def _named(procedure: str, table: str) -> Iterator[None]:
    """Java's own account is long: its first line is the message, the rest is in Spark's log."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise ProcedureFailed(procedure, table, _first_line(error)) from error


def _first_line(error: Any) -> str:
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return str(text).strip().splitlines()[0][:500] if str(text).strip() else type(error).__name__
