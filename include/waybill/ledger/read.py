"""Read the ledger of a stream from what exists: committed offsets, chains, accepted gaps, tables and staged files.

Everything derived is read before its source, as in `waybill.verify.stream`: the tables of dedup, the main table, the
committed offsets, Kafka's log. So runs that go on meanwhile only let a later source have more, which then counts as not
swept, not partitioned or not archived.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from waybill import names
from waybill.archive import gaps
from waybill.archive.gaps import Gap
from waybill.backfill.between import HalfMoved, find_half_moved
from waybill.config import Config, Stream
from waybill.config.quantities import counted
from waybill.coordination import CommittedOffset
from waybill.dedup.first_sweep import format_instant
from waybill.errors import ChainBroken, CorruptBatch, KafkaUnavailable, ObjectMissing
from waybill.ledger import archived, rows
from waybill.ledger.archived import Chain
from waybill.ledger.balance import Imbalance, Ledger, Line, LogTerms, MessageTerms, RowTerms
from waybill.ledger.differences import find_differences
from waybill.names import TopicPartition
from waybill.partition.holds import find_hold
from waybill.quarantine.view import View
from waybill.staging.services import Services
from waybill.store import Store
from waybill.tables import (
    DedupTables,
    FirstSweepStart,
    Progress,
    load_dedup_tables,
    load_tables,
    translate_storage_errors,
)

__all__ = ["ReadLogEnds", "read_ledger"]

_LISTERS = 8
"""Chains that are listed at the same time."""

ReadLogEnds = Callable[[], Mapping[TopicPartition, int]]
"""Returns the log end offset of each topic-partition of the stream in Kafka."""


@dataclass(frozen=True, slots=True)
class _Tables:
    """The tables of a stream as they were loaded, with the rows of each topic-partition in them."""

    view: View
    main: rows.RowCounts
    quarantine: rows.RowCounts
    held: rows.RowCounts | None
    held_end: Progress
    """Where the held plan ends; empty if nothing is held."""
    swept: rows.SweptCounts | None
    half_moved: HalfMoved | None


def read_ledger(
    config: Config,
    name: str,
    services: Services,
    list_committed: Callable[[], Mapping[TopicPartition, CommittedOffset]],
    read_log_ends: ReadLogEnds,
    *,
    read_objects: bool = False,
) -> Ledger:
    """Return the ledger of stream `name`.

    `list_committed` reads the committed offsets at the time of the call. `read_log_ends` may raise `KafkaUnavailable`:
    then the ledger has no figures about Kafka's log, and a note. With `read_objects` the messages are counted in the
    backup objects, in addition to what ingest has counted.

    Raises `StoreUnavailable`, `CoordinationUnavailable` or `CatalogUnavailable` when a service does not answer,
    `ProgressLost`, `SweepHistoryLost` or `BackfillUnderWay` when the state of a table cannot be read.
    """
    stream, store, notes = config.stream(name), services.store, list[str]()
    made_at_ms = int(time.time() * 1000)
    with translate_storage_errors():
        dedup = load_dedup_tables(services.catalog, stream) if stream.dedup is not None else None
        tables = _read_tables(config, name, stream, services, dedup, notes)
    committed = list_committed()
    listed_gaps = gaps.list_gaps_of_topics(store, stream.generation, stream.matches)
    further: list[Imbalance] = []
    chains = _find_chains(store, stream, committed, listed_gaps, further)
    log_ends = _read_log_ends(read_log_ends, chains, notes)
    reader = _LineReader(store, stream, tables, log_ends, read_objects, notes, further)
    with translate_storage_errors():
        lost = {tp: found for tp, chain in chains.items() if (found := archived.lost_ranges(chain))}
        reader.of_lost = rows.count_lost(tables.view, lost) if tables is not None and lost else {}
        lines = [reader.with_differences(reader.line(chain), chain) for chain in chains.values()]
    if tables is not None:
        further += _rows_without_chain(tables, chains)
        if tables.swept is not None:
            further += _left_out_too_many(tables.swept.beginning, lines, notes)
    return Ledger(name, stream.generation, made_at_ms, lines, notes, further)


def _find_chains(
    store: Store,
    stream: Stream,
    committed: Mapping[TopicPartition, CommittedOffset],
    listed_gaps: Sequence[Gap],
    further: list[Imbalance],
) -> dict[TopicPartition, Chain]:
    """Return the stream's chains, sorted. One that cannot be read goes to `further`."""

    def find(tp: TopicPartition) -> Chain | Imbalance | None:
        try:
            return archived.find_chain(store, stream.generation, tp, committed.get(tp), listed_gaps)
        except ChainBroken as error:
            return Imbalance(tp, 0, 0, str(error))

    with ThreadPoolExecutor(_LISTERS, thread_name_prefix="waybill-ledger") as pool:
        found = list(pool.map(find, sorted({*_list_chains(store, stream), *committed})))
    further += [chain for chain in found if isinstance(chain, Imbalance)]
    return {chain.tp: chain for chain in found if isinstance(chain, Chain)}


def _list_chains(store: Store, stream: Stream) -> list[TopicPartition]:
    matching = (topic for topic in store.topics() if names.is_topic(topic) and stream.matches(topic))
    return [found.tp for topic in matching for found in store.chains(topic) if found.generation == stream.generation]


def _read_log_ends(
    read_log_ends: ReadLogEnds, chains: Mapping[TopicPartition, Chain], notes: list[str]
) -> Mapping[TopicPartition, int]:
    try:
        ends = read_log_ends()
    except KafkaUnavailable as error:
        notes.append(f"what is not archived yet is left out: {error}")
        return {}
    for what, missing in (
        ("Kafka's log is not known", sorted(chains.keys() - ends.keys())),
        ("there is no chain yet", sorted(ends.keys() - chains.keys())),
    ):
        if missing:
            notes.append(f"{what}: {', '.join(map(str, missing))}")
    return ends


# --- the tables -------------------------------------------------------------------------------------------------------


def _read_tables(
    config: Config, name: str, stream: Stream, services: Services, dedup: DedupTables | None, notes: list[str]
) -> _Tables | None:
    hold = find_hold(services, config, name)
    loaded = load_tables(services.catalog, stream)
    if loaded is None:
        notes.append("there is no table yet: the first partition run creates it")
        return None
    store = services.store
    view = View.of(store, name, stream, loaded)
    half_moved = find_half_moved(store, name, stream, loaded)
    if half_moved is not None:
        notes.append(
            f"backfill {half_moved.backfill} is being promoted or undone, or was interrupted: quarantined messages of "
            f"its range are counted as they were before. The same command ends it"
        )
    if hold is not None and hold.plan.start != view.progress:
        hold = None  # it was published between the two reads
    swept = None
    if stream.dedup is not None:
        why = "there was no dedup sweep yet"
        found = why if dedup is None else rows.count_swept(loaded.main, dedup, stream)
        if isinstance(found, str):
            notes.append(f"the tables of dedup are left out: {found}")
        else:
            swept = found
    return _Tables(
        view,
        rows.count_main(loaded.main, stream),
        rows.count_quarantine(view, stream, half_moved),
        None if hold is None else rows.count_held(hold, stream),
        {} if hold is None else hold.staged.end,
        swept,
        half_moved,
    )


def _rows_without_chain(tables: _Tables, chains: Mapping[TopicPartition, Chain]) -> list[Imbalance]:
    """Return the rows that belong to no line of the ledger."""
    found = []
    for counts, where in ((tables.main, tables.view.tables.main), (tables.quarantine, tables.view.tables.quarantine)):
        table = ".".join(where.name())
        for (tp, generation), number in sorted(counts.foreign.items()):
            found.append(Imbalance(tp, 0, 0, f"{counted(number, 'row')} of generation {generation} in {table}"))
        for tp, number in sorted(counts.rows.items()):
            if number and tp not in chains:
                what = f"{counted(number, 'row')} in {table}, and the topic-partition has no chain"
                found.append(Imbalance(tp, 0, 0, what))
    return found


def _left_out_too_many(beginning: FirstSweepStart | None, lines: Sequence[Line], notes: list[str]) -> list[Imbalance]:
    """Return what is wrong with the rows that the first sweep left out, of which only the sum is recorded."""
    if beginning is None:
        return []
    since = format_instant(beginning.since_ms)
    notes.append(f"dedup is complete since {since}: the first sweep left out {counted(beginning.rows, 'row')}")
    affected = [line for line in lines if line.rows is not None and line.rows.left_out]
    total = sum(line.rows.left_out for line in affected if line.rows is not None)
    if total <= beginning.rows:
        return []
    what = f"{total - beginning.rows:,} rows more than the first sweep left out are in no table of dedup"
    return [Imbalance(line.tp, line.log.start_offset, beginning.progress[line.tp], what) for line in affected]


# --- one line ---------------------------------------------------------------------------------------------------------


class _LineReader:
    """Makes the line of a chain. What is left out goes to `notes`, what fits no line to `further`."""

    def __init__(
        self,
        store: Store,
        stream: Stream,
        tables: _Tables | None,
        log_ends: Mapping[TopicPartition, int],
        read_objects: bool,
        notes: list[str],
        further: list[Imbalance],
    ) -> None:
        self._store = store
        self._stream = stream
        self._tables = tables
        self._log_ends = log_ends
        self._read_objects = read_objects
        self._notes = notes
        self._further = further
        self.of_lost: Mapping[TopicPartition, int] = {}

    def line(self, chain: Chain) -> Line:
        """Return the line. A chain that cannot be read becomes an imbalance, and its messages are not known."""
        tp = chain.tp
        progress = (
            chain.start_offset if self._tables is None else self._tables.view.progress.get(tp, chain.start_offset)
        )
        try:
            in_objects, waiting = self._count_messages(chain, progress)
            in_uncommitted, _ = self._count_from(chain, chain.committed_offset, chain.end_offset)
        except (ChainBroken, CorruptBatch, ObjectMissing) as error:
            self._further.append(Imbalance(tp, chain.start_offset, chain.end_offset, str(error)))
            log = LogTerms(chain.start_offset, chain.end_offset, self._log_ends.get(tp), 0, None)
            return Line(tp, log, self._message_terms(tp, progress, None), self._row_terms(tp), chain.gaps)
        log, why, contradictions = archived.log_terms(chain, self._log_ends.get(tp), in_objects, in_uncommitted)
        self._further += contradictions
        if why is not None:
            self._notes.append(f"{tp}: the number of messages is not known, since {why}: --read-objects counts them")
        if waiting is None:
            waiting = log.messages  # nothing is partitioned yet
        return Line(tp, log, self._message_terms(tp, progress, waiting), self._row_terms(tp), chain.gaps)

    def with_differences(self, line: Line, chain: Chain) -> Line:
        """Return the line with the objects whose messages and rows differ, if it does not balance.

        With `sink: files` the tables do not hold the offsets of rows, and the line stays as it is. It also stays if no
        object differs: then what the line adds up differs from what is stored.
        """
        tables, messages = self._tables, line.messages
        if tables is None or messages is None or self._stream.sink.is_files or tables.half_moved is not None:
            return line
        if not any(messages.imbalances(line.tp, line.log)):
            return line
        found = find_differences(self._store, self._stream.generation, chain, tables.view, messages.progress)
        return replace(line, differences=found)

    def _count_messages(self, chain: Chain, progress: int) -> tuple[int | None, int | None]:
        """Return the messages of the whole chain, if its objects are read, and those that wait to be partitioned.

        The latter are None if that is the whole chain, and its objects are not read.
        """
        tp = chain.tp
        held_end = {} if self._tables is None else self._tables.held_end
        waits_from = max(progress, held_end.get(tp, progress))
        if waits_from > chain.end_offset:
            what = f"the table's progress is {waits_from}, and the chain ends at {chain.end_offset}"
            self._further.append(Imbalance(tp, chain.end_offset, waits_from, what))
        if self._read_objects:
            before, after = self._count_from(chain, chain.start_offset, waits_from)
            return before + after, after
        if waits_from == chain.start_offset:
            return None, None
        _, waiting = self._count_from(chain, waits_from, waits_from)
        return None, waiting

    def _count_from(self, chain: Chain, first_offset: int, split_offset: int) -> tuple[int, int]:
        """See `archived.count_messages`."""
        return archived.count_messages(self._store, self._stream.generation, chain, first_offset, split_offset)

    def _message_terms(self, tp: TopicPartition, progress: int, waiting: int | None) -> MessageTerms | None:
        tables = self._tables
        if tables is None:
            return None
        return MessageTerms(
            tables.main.rows[tp],
            tables.quarantine.rows[tp],
            0 if tables.held is None else tables.held.rows[tp],
            waiting,
            progress,
            self.of_lost.get(tp, 0),
        )

    def _row_terms(self, tp: TopicPartition) -> RowTerms | None:
        tables = self._tables
        if tables is None or tables.swept is None:
            return None
        swept = tables.swept
        unique, duplicates, unswept = swept.unique.rows[tp], swept.duplicates.rows[tp], swept.unswept[tp]
        left_out = 0
        if swept.beginning is not None and tp in swept.beginning.progress:
            left_out = max(tables.main.rows[tp] - unique - duplicates - unswept, 0)
        return RowTerms(unique, duplicates, unswept, left_out)
