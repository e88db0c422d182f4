"""Columns without any value in a run, although the table's newest files have values: probably a renamed field.

The entries of data files have the number of values and of nulls of each column, so no row is read. Manifests of the
table are read only if a column has no value at all in the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import ListType

from waybill.tables.audit.given import AuditInput

_ENOUGH_ROWS = 1_000_000
_MOST_MANIFESTS = 50
"""How far back the table's files are read for the usual share of values."""

_LEAST_EXPECTED_VALUES = 20
"""A column that rarely has a value may have none in a small run: there is no result unless at least this number of
values is expected."""


@dataclass(frozen=True, slots=True)
class NullColumn:
    """A column without any value in the run."""

    name: str
    rows: int
    usual_share: float
    """The share of rows with a value in the table's newest files."""

    def __str__(self) -> str:
        return f"{self.name}: null in all {self.rows:,} rows; {self.usual_share:.1%} of earlier rows have a value"


@dataclass(slots=True)
class _Seen:
    rows: int = 0
    values: int = 0


def find_columns_that_became_null(given: AuditInput) -> list[NullColumn]:
    """Return the columns of the config that have no value in the staged files, although values are expected.

    Raises `OSError` when the table's manifests cannot be read.
    """
    ids = _field_ids(given.table, given.stream.columns)
    staged = _count(given.table_files, ids)
    empty = {name: ids[name] for name, seen in staged.items() if seen.rows and not seen.values}
    if not empty:
        return []
    found = []
    for name, usual in _count(_newest_files(given.table, given.history.current_snapshot()), empty).items():
        share = usual.values / usual.rows if usual.rows else 0.0
        if share * staged[name].rows >= _LEAST_EXPECTED_VALUES:
            found.append(NullColumn(name, staged[name].rows, share))
    return found


def _field_ids(table: Table, columns: Iterable[str]) -> dict[str, int]:
    """Return the field ids under which the entries of data files count the values of columns.

    For a list, its elements' id.
    """
    fields = {field.name: field for field in table.schema().fields}
    found = (fields[name] for name in columns if name in fields)
    return {
        field.name: field.field_type.element_id if isinstance(field.field_type, ListType) else field.field_id
        for field in found
    }


def _count(files: Iterable[DataFile], ids: Mapping[str, int]) -> dict[str, _Seen]:
    """Return the rows and the values of each column, in files with counts.

    Files written before the column existed are left out.
    """
    seen = {name: _Seen() for name in ids}
    for file in files:
        counts, nulls = file.value_counts or {}, file.null_value_counts or {}
        for name, field_id in ids.items():
            if field_id in counts and field_id in nulls:
                seen[name].rows += file.record_count
                seen[name].values += counts[field_id] - nulls[field_id]
    return seen


def _newest_files(table: Table, snapshot: Snapshot | None) -> Iterator[DataFile]:
    """Yield the files of a snapshot's newest manifests until they have `_ENOUGH_ROWS`."""
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    data = [manifest for manifest in manifests if manifest.content is ManifestContent.DATA]
    rows = 0
    for manifest in sorted(data, key=lambda each: -each.sequence_number)[:_MOST_MANIFESTS]:
        for entry in manifest.fetch_manifest_entry(table.io):
            rows += entry.data_file.record_count
            yield entry.data_file
        if rows >= _ENOUGH_ROWS:
            return
