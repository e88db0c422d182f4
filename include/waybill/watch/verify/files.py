"""Check the files of a `files` sink: the rows in them, and the objects in their directories.

Parquet and SequenceFile hold the offset of each message. Text does not: there the messages of each range of offsets
that one task has read are counted. The files of the range must hold as many as the chain has, less those in
quarantine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

from waybill.archive.formats.sequencefile import read_messages
from waybill.archive.formats.text import read_values
from waybill.base.errors import CorruptBatch, DamagedFile, DamagedObject, ObjectMissing
from waybill.config.models import Stream
from waybill.config.models.enums import FileFormat
from waybill.config.models.quantities import counted
from waybill.config.names import SinkPeriod, TopicPartition, period_of_key, success_key
from waybill.services.store import ListedObject, Store
from waybill.services.store.objects import HashedBytes
from waybill.tables.iceberg import translate_damage_errors
from waybill.tables.iceberg.file_inventory import InventoryEntry, read_inventory
from waybill.tables.partition.files_sink.hour_state import HourStatus, SuccessMarker, classify_hour
from waybill.watch.verify.effects import AffectedRows
from waybill.watch.verify.verify_report import FaultKind, VerifyFault, VerifyReport

if TYPE_CHECKING:
    Flags = np.ndarray[Any, np.dtype[np.bool_]]

UNREADABLE = (FileNotFoundError, pa.ArrowInvalid, DamagedFile, ObjectMissing, CorruptBatch)
"""The errors of reading a file that is missing or damaged."""

_COLUMNS = ["topic", "partition", "offset", "generation"]
_ROWS = 1 << 20


@dataclass(slots=True)
class _CountedRange:
    """A range of offsets whose files do not hold the offsets of their messages."""

    tp: TopicPartition
    first_offset: int
    next_offset: int
    entries: list[InventoryEntry] = field(default_factory=list)
    expected: int = 0
    """Messages of the chain in the range that are not in quarantine."""
    is_known: bool = True
    """Whether the chain is sound there, so that `expected` is right."""


class SinkFiles:
    """The files of a sink, read in place of the main table's rows."""

    def __init__(self, store: Store, inventory: Table, stream: Stream) -> None:
        self._store = store
        self._io = inventory.io
        self._name = ".".join(inventory.name())
        self._stream = stream
        self._entries = read_inventory(inventory)
        self._has_offsets = stream.sink.format.name is not FileFormat.TEXT
        self._counted_ranges = {} if self._has_offsets else _ranges_by_topic_partition(self._entries)

    @property
    def rows(self) -> int:
        """The number of rows in the inventory's entries."""
        return sum(entry.rows for entry in self._entries)

    def batches(self, first: int, following: int) -> Iterator[pa.RecordBatch]:
        """Yield topic, partition, offset and generation of the rows in a window; nothing if files lack offsets."""
        if not self._has_offsets:
            return
        for entry in self._entries:
            if entry.first_offset < following and entry.next_offset > first:
                for batch in self._read(entry):
                    offsets = batch.column("offset").to_numpy()
                    yield batch.filter(pa.array((offsets >= first) & (offsets < following)))

    def _read(self, entry: InventoryEntry) -> Iterator[pa.RecordBatch]:
        if self._stream.sink.format.name is FileFormat.PARQUET:
            with translate_damage_errors(self._name, entry.path), self._io.new_input(entry.path).open() as source:
                yield from pq.ParquetFile(source).iter_batches(_ROWS, columns=_COLUMNS)
            return
        key = _key(entry)
        with self._store.open(key) as source:
            hashed = HashedBytes(source)
            for messages in read_messages(hashed, key):
                n = messages.num_rows
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.repeat(entry.topic, n),
                        pa.repeat(pa.scalar(entry.partition, pa.int32()), n),
                        messages.column("offset"),
                        pa.repeat(pa.scalar(self._stream.generation, pa.int32()), n),
                    ],
                    names=_COLUMNS,
                )
            _check_hash(entry, hashed)

    # --- formats without offsets ---

    def count_without_offsets(self, tp: TopicPartition, first_offset: int, absent: Flags, unknown: Flags) -> None:
        """Add the messages of a window to the numbers that `check_counts` expects, and clear them in `absent`.

        Both arrays start at `first_offset`. `absent` marks the messages of the chain that have no row in quarantine;
        `unknown` marks the offsets whose messages are unknown, because an object is missing.
        """
        for counted_range in self._counted_ranges.get(tp, ()):
            low = max(counted_range.first_offset - first_offset, 0)
            high = max(counted_range.next_offset - first_offset, 0)
            counted_range.expected += int(np.count_nonzero(absent[low:high]))
            counted_range.is_known &= not unknown[low:high].any()
            absent[low:high] = False

    def check_counts(self, report: VerifyReport, affected: AffectedRows) -> None:
        """Count the messages in files without offsets, and compare the numbers with the chain.

        A range that an archive fault concerns, or one with an unreadable file, cannot be compared.
        """
        for counted_range in (found for ranges in self._counted_ranges.values() for found in ranges):
            counts = [self._count(entry, report) for entry in counted_range.entries]
            total = sum(number for number, _ in counts)
            report.figures.rows += total
            tp, first, following = counted_range.tp, counted_range.first_offset, counted_range.next_offset
            if affected.count_in_range(self._name, tp, first, following, total) or not counted_range.is_known:
                continue
            # One unreadable file is one fault: its messages are not reported as lost too.
            if all(is_readable for _, is_readable in counts):
                _compare_counts(counted_range, total, report)

    def _count(self, entry: InventoryEntry, report: VerifyReport) -> tuple[int, bool]:
        """Return the number of messages in a text file, and whether it could be read to the end."""
        kind, key, number = self._stream.sink.format, _key(entry), 0
        try:
            with self._store.open(key) as source:
                hashed = HashedBytes(source)
                compressed = key.endswith(".gz")
                for values in read_values(hashed, key, kind.delimiter.encode(), compressed=compressed):
                    number += len(values)
                _check_hash(entry, hashed)
        except UNREADABLE as error:
            report.add_fault(VerifyFault(FaultKind.UNREADABLE, key, entry.tp, None, None, str(error)))
            return number, False
        return number, True


def _ranges_by_topic_partition(entries: Sequence[InventoryEntry]) -> dict[TopicPartition, list[_CountedRange]]:
    ranges: dict[tuple[TopicPartition, int, int], _CountedRange] = {}
    for entry in entries:
        where = (entry.tp, entry.first_offset, entry.next_offset)
        ranges.setdefault(where, _CountedRange(*where)).entries.append(entry)
    by_tp: dict[TopicPartition, list[_CountedRange]] = defaultdict(list)
    for counted_range in ranges.values():
        by_tp[counted_range.tp].append(counted_range)
    return by_tp


def _compare_counts(counted_range: _CountedRange, total: int, report: VerifyReport) -> None:
    difference = total - counted_range.expected
    if not difference:
        return
    if difference < 0:
        kind = FaultKind.LOST
        report.figures.lost -= difference
    else:
        kind = FaultKind.FOREIGN
        report.figures.foreign += difference
    first, following = counted_range.first_offset, counted_range.next_offset
    example = _key(counted_range.entries[0])
    where = example if len(counted_range.entries) == 1 else f"{len(counted_range.entries):,} files, such as {example}"
    what = (
        f"the files of these offsets hold {counted(total, 'message')}, and the chain has "
        f"{counted_range.expected:,} that are not in quarantine"
    )
    report.add_fault(VerifyFault(kind, where, counted_range.tp, first, following, what))


def _check_hash(entry: InventoryEntry, hashed: HashedBytes) -> None:
    hashed.drain()
    if hashed.hexdigest() != entry.sha256:
        raise DamagedObject(_key(entry), 0, "its SHA-256 is not the one in the file inventory")


def _key(entry: InventoryEntry) -> str:
    return entry.path.split("/", 3)[3]


def check_directories(store: Store, inventory: Table, stream: Stream, root: str, report: VerifyReport) -> None:
    """Check that each file of the inventory exists with its size, and that final hours hold no other objects."""
    suspects = [hour.period for hour in _inspect_hours(store, inventory, stream, root, None) if _is_wrong(hour)]
    if not suspects:
        return
    # A partition run or a finalizer may have changed these hours between reading the inventory and listing the objects.
    # Check them again with the present inventory.
    inventory.refresh()
    tps = {_key(entry): entry.tp for entry in read_inventory(inventory)}
    for hour in _inspect_hours(store, inventory, stream, root, suspects):
        for key in hour.missing:
            _add_missing_file(report, key, tps.get(key))
        if hour.is_marked:
            for key in hour.strays:
                what = f"is in {hour.period}, which is final, and the file inventory does not list it"
                report.add_fault(VerifyFault(FaultKind.FOREIGN, key, None, None, None, what))


def _add_missing_file(report: VerifyReport, key: str, tp: TopicPartition | None) -> None:
    """Add a fault for a file in place of the one that reading it has added, so that there is one fault for the file."""
    what = "is missing, or not of the size in the file inventory"
    same = [f for f in report.faults if f.kind is FaultKind.UNREADABLE and (f.where == key or key in f.what)]
    if same:
        what = f"{what}; reading it failed: {same[0].what}"
        report.faults = [fault for fault in report.faults if not any(fault is other for other in same)]
    report.add_fault(VerifyFault(FaultKind.UNREADABLE, key, tp, None, None, what))


def _is_wrong(hour: HourStatus) -> bool:
    return bool(hour.missing) or (hour.is_marked and bool(hour.strays))


def _inspect_hours(
    store: Store, inventory: Table, stream: Stream, root: str, only: Sequence[SinkPeriod] | None
) -> Iterator[HourStatus]:
    """Yield the status of all hours, or of `only` some, from the inventory and a listing of their directories."""
    entries: dict[SinkPeriod, list[InventoryEntry]] = defaultdict(list)
    for entry in read_inventory(inventory):
        entries[entry.period(by_hour=stream.by_hour)].append(entry)
    prefixes = [f"{root}/"] if only is None else [period.prefix(root) for period in only]
    listed: dict[SinkPeriod, list[ListedObject]] = {period: [] for period in (entries if only is None else only)}
    for found in (found for prefix in prefixes for found in store.list_objects(prefix)):
        period = period_of_key(root, found.key)
        if period is not None:
            listed.setdefault(period, []).append(found)
    for period, objects in sorted(listed.items()):
        yield _compare_directory(period, entries.get(period, []), objects, root)


def _compare_directory(
    period: SinkPeriod, entries: Sequence[InventoryEntry], objects: Sequence[ListedObject], root: str
) -> HourStatus:
    marker_key = success_key(root, period)
    # Readers ignore objects whose names begin with "_" or ".".
    visible = [found for found in objects if found.key.rsplit("/", 1)[-1][0] not in "_."]
    is_marked = any(found.key == marker_key for found in objects)
    # The marker's content is not checked here, so the right one is passed.
    marker = SuccessMarker.of(entries)
    return classify_hour(period, entries, visible, marker, is_marked=is_marked, final_before=None)
