"""The files of a `files` sink: what they hold, by offset where the format says it, and what lies in their directories.

Text holds no offsets. There the messages of each range that a task has read are counted: as many lines in its files as
the chain has messages there that are not in quarantine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

from waybill.config import Stream
from waybill.config.enums import FileFormat
from waybill.errors import CorruptBatch, DamagedFile, DamagedObject, ObjectMissing
from waybill.formats.sequencefile import read_messages
from waybill.formats.streams import HashedBytes
from waybill.formats.text import read_values
from waybill.names import Period, TopicPartition, period_of, success_key
from waybill.partition.files_sink.finality import Finding, Marker, judge
from waybill.store import ListedObject, Store
from waybill.tables import damage_named
from waybill.tables.file_inventory import LedgerEntry, read_ledger
from waybill.verify.report import Fault, FaultKind, Report

if TYPE_CHECKING:
    Flags = np.ndarray[Any, np.dtype[np.bool_]]

__all__ = ["UNREADABLE", "LedgerFiles", "check_directories"]

UNREADABLE = (FileNotFoundError, pa.ArrowInvalid, DamagedFile, ObjectMissing, CorruptBatch)
"""What reading a file raises when it is missing or damaged."""

_COLUMNS = ["topic", "partition", "offset", "generation"]
_ROWS = 1 << 20


@dataclass(slots=True)
class _Untold:
    """A range whose files do not say which offsets they hold."""

    tp: TopicPartition
    first_offset: int
    next_offset: int
    entries: list[LedgerEntry] = field(default_factory=list)
    wanted: int = 0
    """Messages of the chain in the range that are not in quarantine."""
    is_known: bool = True
    """Whether that could be counted."""


class LedgerFiles:
    """Stands for the rows of a table whose rows are in files."""

    def __init__(self, store: Store, ledger: Table, stream: Stream) -> None:
        self._store = store
        self._io = ledger.io
        self._name = ".".join(ledger.name())
        self._stream = stream
        self._entries = read_ledger(ledger)
        self._tells_offsets = stream.sink.format.name is not FileFormat.TEXT
        self._untold: dict[TopicPartition, list[_Untold]] = defaultdict(list)
        if not self._tells_offsets:
            self._gather_untold()

    @property
    def rows(self) -> int:
        """How many rows the ledger says there are."""
        return sum(entry.rows for entry in self._entries)

    def _gather_untold(self) -> None:
        ranges: dict[tuple[TopicPartition, int, int], _Untold] = {}
        for entry in self._entries:
            where = (entry.tp, entry.first_offset, entry.next_offset)
            ranges.setdefault(where, _Untold(*where)).entries.append(entry)
        for untold in ranges.values():
            self._untold[untold.tp].append(untold)

    def batches(self, first: int, following: int) -> Iterator[pa.RecordBatch]:
        """Topic, partition, offset and generation of the rows in a window of offsets, if files say them."""
        if not self._tells_offsets:
            return
        for entry in self._entries:
            if entry.first_offset < following and entry.next_offset > first:
                for batch in self._read(entry):
                    offsets = batch.column("offset").to_numpy()
                    yield batch.filter(pa.array((offsets >= first) & (offsets < following)))

    def _read(self, entry: LedgerEntry) -> Iterator[pa.RecordBatch]:
        if self._stream.sink.format.name is FileFormat.PARQUET:
            with damage_named(self._name, entry.path), self._io.new_input(entry.path).open() as source:
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

    # --- ranges of which only the number of messages is known ---

    def take_untold(self, tp: TopicPartition, first_offset: int, absent: Flags, unknown: Flags) -> None:
        """Note how many messages of a window should be in files that do not say it; none of them is absent any more.

        `absent`: in the chain, and not in quarantine; `unknown`: what was there is not known. From `first_offset` on.
        """
        for untold in self._untold.get(tp, ()):
            low = max(untold.first_offset - first_offset, 0)
            high = max(untold.next_offset - first_offset, 0)
            untold.wanted += int(np.count_nonzero(absent[low:high]))
            untold.is_known &= not unknown[low:high].any()
            absent[low:high] = False

    def check_untold(self, report: Report) -> None:
        """Count the messages of files that do not say more, and hold the numbers against each other."""
        for untold in (untold for ranges in self._untold.values() for untold in ranges):
            found = sum(self._count(entry, report) for entry in untold.entries)
            report.figures.rows += found
            if not untold.is_known or found == untold.wanted:
                continue
            where = f"{len(untold.entries)} files, such as {_key(untold.entries[0])}"
            lost = untold.wanted > found
            if lost:
                report.figures.lost += untold.wanted - found
            else:
                report.figures.foreign += found - untold.wanted
            what = (
                f"{found:,} messages in files that were made of these offsets, where there should be {untold.wanted:,}"
            )
            kind = FaultKind.LOST if lost else FaultKind.FOREIGN
            report.faults.append(Fault(kind, where, untold.tp, untold.first_offset, untold.next_offset, what))

    def _count(self, entry: LedgerEntry, report: Report) -> int:
        kind, key, found = self._stream.sink.format, _key(entry), 0
        try:
            with self._store.open(key) as source:
                hashed = HashedBytes(source)
                compressed = key.endswith(".gz")
                for values in read_values(hashed, key, kind.delimiter.encode(), compressed=compressed):
                    found += len(values)
                _check_hash(entry, hashed)
        except UNREADABLE as error:
            report.faults.append(Fault(FaultKind.UNREADABLE, key, entry.tp, None, None, str(error)))
        return found


def _check_hash(entry: LedgerEntry, hashed: HashedBytes) -> None:
    hashed.drain()
    if hashed.hexdigest() != entry.sha256:
        raise DamagedObject(_key(entry), 0, "its bytes are not those that the ledger has the SHA-256 of")


def _key(entry: LedgerEntry) -> str:
    return entry.path.split("/", 3)[3]


def check_directories(store: Store, ledger: Table, stream: Stream, root: str, report: Report) -> None:
    """Each file that the ledger lists is there, and in a final hour there is nothing else."""
    suspects = [finding.period for finding in _look(store, ledger, stream, root, None) if _is_wrong(finding)]
    if not suspects:
        return
    # A run, or a finalizer, may have been at it between the ledger and the listing: look again at those.
    ledger.refresh()
    for finding in _look(store, ledger, stream, root, suspects):
        tps = {_key(entry): entry.tp for entry in read_ledger(ledger)}
        for key in finding.missing:
            what = "is missing, or not of the size that the ledger says"
            report.faults.append(Fault(FaultKind.UNREADABLE, key, tps.get(key), None, None, what))
        if finding.is_marked:
            for key in finding.strays:
                what = f"is in {finding.period}, which is final, and the ledger does not list it"
                report.faults.append(Fault(FaultKind.FOREIGN, key, None, None, None, what))


def _is_wrong(finding: Finding) -> bool:
    return bool(finding.missing) or (finding.is_marked and bool(finding.strays))


def _look(store: Store, ledger: Table, stream: Stream, root: str, only: Sequence[Period] | None) -> Iterator[Finding]:
    entries: dict[Period, list[LedgerEntry]] = defaultdict(list)
    for entry in read_ledger(ledger):
        entries[entry.period(by_hour=stream.by_hour)].append(entry)
    prefixes = [f"{root}/"] if only is None else [period.prefix(root) for period in only]
    listed: dict[Period, list[ListedObject]] = {period: [] for period in (entries if only is None else only)}
    for found in (found for prefix in prefixes for found in store.list_objects(prefix)):
        period = period_of(root, found.key)
        if period is not None:
            listed.setdefault(period, []).append(found)
    for period, there in sorted(listed.items()):
        yield _judge(period, entries, there, root)


def _judge(
    period: Period, entries: Mapping[Period, list[LedgerEntry]], there: Sequence[ListedObject], root: str
) -> Finding:
    marker = success_key(root, period)
    shown = [found for found in there if found.key.rsplit("/", 1)[-1][0] not in "_."]
    is_marked = any(found.key == marker for found in there)
    wanted = entries.get(period, [])
    return judge(period, wanted, shown, Marker.of(wanted), is_marked=is_marked, final_before=None)
