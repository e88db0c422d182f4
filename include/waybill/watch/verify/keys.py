"""Check what dedup promises: each key once within the window, and for each duplicate the unique row that it names.

The check reads the tables only. It uses neither the key index nor the code by which sweeps find duplicates.

Memory is bounded. The keys are divided into equal parts that fit into memory, and the unique table is read once for
each part. Duplicates, and the rows that they name, are compared in windows of offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table

from waybill.config.models import Dedup
from waybill.config.models.dedup import ARRIVED_AT
from waybill.config.models.quantities import counted
from waybill.config.names import TopicPartition
from waybill.tables.dedup.keys import exclude_assigned_ids, hash_keys, key_text
from waybill.tables.iceberg import DedupTables, read_sweep_position, read_sweep_state
from waybill.tables.iceberg.dedup import NO_HORIZON_MS
from waybill.watch.verify.files import UNREADABLE
from waybill.watch.verify.offsets import ALL_ROWS, offset_windows, read_columns, total_records, within
from waybill.watch.verify.verify_report import FaultKind, Listener, VerifyFault, VerifyReport, first_line

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

ROWS_IN_MEMORY = 4 << 20
"""Keys that are compared at the same time: some 100 bytes each."""

_ORIGIN = ("topic", "partition", "offset")
_FIRST = tuple(f"first_{name}" for name in _ORIGIN)
_MOST_FAULTS = 20
_US = 1000


def check_keys(
    tables: DedupTables,
    settings: Dedup,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    report: VerifyReport,
    listener: Listener,
    *,
    window_offsets: int,
    rows_in_memory: int = ROWS_IN_MEMORY,
) -> None:
    """Compare the tables that sweeps fill with each other. `ranges` are the offsets of their rows.

    Rows from before the horizon are not checked: sweeps no longer compare their keys, so a key may be there twice. The
    window is the one in the config. After it was raised, rows that were swept with the shorter window may be reported.
    """
    unique = _UniqueKeys(tables, settings, report, listener)
    parts = 1
    while unique.rows > parts * rows_in_memory:
        parts *= 2
    listener.begin("reading the keys", unique.rows * parts)
    try:
        for part in range(parts):
            unique.check_part(part, parts)
        _check_duplicates(tables, settings, ranges, report, listener, window_offsets)
    except _Unreadable as fault:
        report.add_fault(VerifyFault(FaultKind.UNREADABLE, fault.where, None, None, None, fault.what))
        return
    report.keys_checked = True


class _Unreadable(Exception):
    """A file of the table `where` is missing or damaged."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(where, what)
        self.where, self.what = where, what


def _read(
    table: Table, columns: tuple[str, ...], row_filter: str | BooleanExpression = ALL_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield batches with these columns, in this order. Raises `_Unreadable`."""
    try:
        for batch in read_columns(table, columns, row_filter):
            yield batch.select(columns)
    except UNREADABLE as error:
        raise _Unreadable(".".join(table.name()), first_line(error)) from error


def _check_duplicates(
    tables: DedupTables,
    settings: Dedup,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    report: VerifyReport,
    listener: Listener,
    window_offsets: int,
) -> None:
    both = (tables.unique, tables.duplicates)
    positions = [read_sweep_position(table.metadata, ".".join(table.name())) for table in both]
    unique_sequence, duplicates_sequence = (0 if found is None else found.sequence for found in positions)
    if duplicates_sequence > unique_sequence:
        report.notes.append("a sweep is half committed: its duplicates may name rows that are not committed yet")
        return
    duplicates = _DuplicatesCheck(tables, settings.key, report)
    listener.begin("looking up the duplicates", 1)
    for first, following in offset_windows(ranges.values(), window_offsets):
        duplicates.check(first, following)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows with a key in one part of all keys, as columns."""

    hi: Array
    lo: Array
    arrived_us: Array
    tp: Array
    """Positions in `_UniqueKeys._codes`."""
    offset: Array


class _UniqueKeys:
    """Finds unique rows with the same key whose arrival times are closer than the window."""

    def __init__(self, tables: DedupTables, settings: Dedup, report: VerifyReport, listener: Listener) -> None:
        self._table = tables.unique
        self._key = settings.key
        self._secret = self._table.metadata.table_uuid.bytes
        self._window_us = settings.window_ms * _US
        self._name = ".".join(self._table.name())
        self._horizon_ms = read_sweep_state(self._table.metadata, self._name).horizon_ms
        self._report, self._listener = report, listener
        self._codes: dict[TopicPartition, int] = {}
        self.rows = total_records(self._table.current_snapshot())

    def check_part(self, part: int, parts: int) -> None:
        """Check the keys of one part. The highest bits of a key's hash decide in which of the equal parts it is."""
        found = [rows for batch in self._batches() if (rows := self._of_part(batch, part, parts)) is not None]
        if not found:
            return
        hi, lo, arrived, tp, offset = (
            np.concatenate([getattr(rows, name) for rows in found])
            for name in ("hi", "lo", "arrived_us", "tp", "offset")
        )
        order = np.lexsort((offset, arrived, lo, hi))
        same = (hi[order][1:] == hi[order][:-1]) & (lo[order][1:] == lo[order][:-1])
        close = same & (np.diff(arrived[order]) <= self._window_us)
        tps = list(self._codes)
        places = np.flatnonzero(close)
        self._report.figures.repeated += len(places)
        for place in places[:_MOST_FAULTS]:
            before, after = order[place], order[place + 1]
            what = (
                f"has the same key as {tps[tp[before]]} offset {offset[before]}, which arrived "
                f"{(arrived[after] - arrived[before]) / 1e6:,.3f} s before: that is within the window"
            )
            at = int(offset[after])
            self._report.add_fault(VerifyFault(FaultKind.REPEATED, self._name, tps[tp[after]], at, at + 1, what))
        if len(places) > _MOST_FAULTS:
            more = counted(len(places) - _MOST_FAULTS, "more row")
            what = f"{more} with the same key as another row that arrived within the window"
            self._report.add_fault(VerifyFault(FaultKind.REPEATED, self._name, None, None, None, what))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        columns = tuple(dict.fromkeys((*_ORIGIN, ARRIVED_AT, "message_id", *self._key)))
        for batch in _read(self._table, columns):
            self._listener.advance(batch.num_rows)
            yield batch

    def _of_part(self, batch: pa.RecordBatch, part: int, parts: int) -> _Rows | None:
        hashes = exclude_assigned_ids(hash_keys([batch.column(c) for c in self._key], self._secret), self._key, batch)
        arrived_us = batch.column(ARRIVED_AT).cast(pa.int64()).to_numpy()
        wanted = hashes.present
        if parts > 1:
            wanted = wanted & (hashes.hi >> np.uint64(65 - parts.bit_length()) == part)
        if self._horizon_ms != NO_HORIZON_MS:
            wanted = wanted & (arrived_us >= self._horizon_ms * _US)
        at = np.flatnonzero(wanted)
        if not len(at):
            return None
        offset = batch.column("offset").to_numpy()
        return _Rows(hashes.hi[at], hashes.lo[at], arrived_us[at], self._codes_of(batch)[at], offset[at])

    def _codes_of(self, batch: pa.RecordBatch) -> Array:
        topic = batch.column("topic").dictionary_encode()
        place = topic.indices.to_numpy().astype(np.int64) << 32 | batch.column("partition").to_numpy()
        places, inverse = np.unique(place, return_inverse=True)
        tps = [TopicPartition(topic.dictionary[int(p) >> 32].as_py(), int(p) & 0xFFFF_FFFF) for p in places]
        return np.array([self._codes.setdefault(tp, len(self._codes)) for tp in tps], np.int32)[inverse]


class _DuplicatesCheck:
    """Looks up the unique row that each duplicate names as the first one with its key."""

    def __init__(self, tables: DedupTables, key: Sequence[str], report: VerifyReport) -> None:
        self._unique, self._duplicates = tables.unique, tables.duplicates
        self._key = tuple(key)
        self._report = report
        self._name = ".".join(self._duplicates.name())

    def check(self, first: int, following: int) -> None:
        """Check the duplicates that name rows with offsets in `[first, following)`."""
        named = self._read_named_rows(first, following)
        if not named.num_rows:
            return
        kept = self._read_kept_rows(named, first, following)
        joined = named.join(kept, [*_FIRST], [*_ORIGIN], join_type="left outer", right_suffix="_kept")
        right = pc.and_(
            pc.equal(joined.column("key"), joined.column("key_kept")),
            pc.equal(joined.column("first_arrived_at"), joined.column(f"{ARRIVED_AT}_kept")),
        )
        wrong = joined.filter(pc.invert(pc.fill_null(right, False))).sort_by("offset_min")
        self._report.figures.lost += wrong.num_rows
        for row in wrong.slice(0, _MOST_FAULTS).to_pylist():
            tp = TopicPartition(row["first_topic"], row["first_partition"])
            found = "there is no such row" if row["key_kept"] is None else f"that row's key is {row['key_kept']}"
            if row["key_kept"] == row["key"]:
                found = f"that row arrived at {row[f'{ARRIVED_AT}_kept']}, not at {row['first_arrived_at']}"
            what = f"a duplicate names it as the first row with the key {row['key']} in the unique table, and {found}"
            at = row["first_offset"]
            self._report.add_fault(VerifyFault(FaultKind.LOST, self._name, tp, at, at + 1, what))
        if wrong.num_rows > _MOST_FAULTS:
            more = counted(wrong.num_rows - _MOST_FAULTS, "more row")
            what = (
                f"{more} that duplicates name, and that the unique table lacks or has with another key or arrival time"
            )
            self._report.add_fault(VerifyFault(FaultKind.LOST, self._name, None, None, None, what))

    def _read_named_rows(self, first: int, following: int) -> pa.Table:
        """Return the rows that duplicates name, each once, with the key and arrival time that the duplicate has."""
        columns = (*_FIRST, "first_arrived_at", "key", "offset")
        by = [*_FIRST, "first_arrived_at", "key"]
        found: pa.Table | None = None
        for batch in _read(self._duplicates, columns, within("first_offset", first, following)):
            some = _plain(pa.Table.from_batches([batch])).rename_columns([*columns[:-1], "offset_min"])
            both = some if found is None else pa.concat_tables([found, some])
            grouped = both.group_by(by).aggregate([("offset_min", "min")])
            found = grouped.rename_columns({"offset_min_min": "offset_min"})
        return pa.table({}) if found is None else found

    def _read_kept_rows(self, named: pa.Table, first: int, following: int) -> pa.Table:
        """Return the unique rows that `named` contains, with their keys as text."""
        columns = tuple(dict.fromkeys((*_ORIGIN, ARRIVED_AT, *self._key)))
        places = named.select(_FIRST)
        parts = []
        for batch in _read(self._unique, columns, within("offset", first, following)):
            table = _plain(pa.Table.from_batches([batch]))
            some = table.join(places, [*_ORIGIN], [*_FIRST], join_type="left semi")
            for found in some.to_batches():
                texts = key_text(found, self._key)
                kept = pa.table([*(found.column(c) for c in (*_ORIGIN, ARRIVED_AT)), texts], [*_ORIGIN, "a", "k"])
                parts.append(kept.rename_columns([*_ORIGIN, f"{ARRIVED_AT}_kept", "key_kept"]))
        return pa.concat_tables(parts) if parts else _none_kept(named)


def _none_kept(named: pa.Table) -> pa.Table:
    kinds = [named.schema.field(name).type for name in (*_FIRST, "first_arrived_at", "key")]
    return pa.schema(list(zip((*_ORIGIN, f"{ARRIVED_AT}_kept", "key_kept"), kinds, strict=True))).empty_table()


def _plain(table: pa.Table) -> pa.Table:
    """Replace Arrow's large types: the key columns of a join must have the same type on both sides."""
    small = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return table.cast(pa.schema([pa.field(f.name, small.get(f.type, f.type)) for f in table.schema]))
