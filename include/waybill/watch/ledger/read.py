"""Read the ledger of a stream from what exists: committed offsets, chains, accepted gaps, tables and staged files.

Everything derived is read before its source, as in `waybill.watch.verify.stream`: the tables of dedup, the main table,
the committed offsets, Kafka's log. If runs go on meanwhile, the source that is read later only has more, which then
counts as not swept, not partitioned or not archived.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from waybill.archive.chain import gaps
from waybill.archive.chain.gaps import Gap
from waybill.base.errors import ChainBroken, KafkaUnavailable, UnexpectedFailure, WaybillError
from waybill.config import names
from waybill.config.models import Config, Stream
from waybill.config.models.quantities import counted
from waybill.config.names import TopicPartition
from waybill.services.coordination import CommittedOffset, StreamMark
from waybill.services.store import Store
from waybill.tables.backfill.between import find_half_moved
from waybill.tables.dedup.first_sweep import format_instant
from waybill.tables.iceberg import (
    DedupTables,
    FirstSweepStart,
    load_dedup_tables,
    load_tables,
    translate_storage_errors,
)
from waybill.tables.partition.holds import find_hold
from waybill.tables.quarantine.view import View
from waybill.tables.staging.services import StagingServices
from waybill.watch.ledger import archived, rows
from waybill.watch.ledger.archived import Chain
from waybill.watch.ledger.balance import Imbalance, Ledger, Line
from waybill.watch.ledger.lines import LedgerTables, LineReader
from waybill.watch.ledger.periods import LedgerPeriod, PeriodLedger, Periods

logger = logging.getLogger(__name__)

_LISTERS = 8
"""Chains that are listed at the same time."""

ReadLogEnds = Callable[[], Mapping[TopicPartition, int]]
"""Returns the log end offset of each topic-partition of the stream in Kafka."""


def read_ledger(
    config: Config,
    name: str,
    services: StagingServices,
    list_committed: Callable[[], Mapping[TopicPartition, CommittedOffset]],
    read_log_ends: ReadLogEnds,
    *,
    read_objects: bool = False,
) -> Ledger:
    """Return the ledger of stream `name`.

    `list_committed` reads the committed offsets at the time of the call. `read_log_ends` may raise `KafkaUnavailable`:
    then the ledger has a note instead of figures about Kafka's log. With `read_objects` the messages are counted in the
    backup objects, in addition to what ingest has counted.

    Raises `StoreUnavailable`, `CoordinationUnavailable` or `CatalogUnavailable` when a service does not answer,
    `ProgressLost`, `SweepHistoryLost` or `BackfillUnderWay` when the state of a table cannot be read.
    """
    sources = _read_sources(config, name, services, list_committed, read_log_ends)
    lines = _read_lines(sources, sources.tables, sources.chains, sources.log_ends, read_objects)
    _check_whole(sources, lines)
    return Ledger(name, sources.stream.generation, sources.made_at_ms, lines, sources.notes, sources.further)


def read_ledger_by_period(
    config: Config,
    name: str,
    services: StagingServices,
    list_committed: Callable[[], Mapping[TopicPartition, CommittedOffset]],
    read_log_ends: ReadLogEnds,
    marks: Sequence[StreamMark],
    *,
    read_objects: bool = False,
) -> PeriodLedger:
    """Return the ledger of stream `name` for each period between two marks, before the first and after the last.

    `marks`: committed offsets of the stream's generation at earlier times, oldest first. The other parameters and the
    errors are those of `read_ledger`. The offsets of the tables' rows are read as well. With `sink: files` the tables
    are left out, and a note states this: the file inventory has no offsets of rows.
    """
    periods = Periods(marks)
    sources = _read_sources(config, name, services, list_committed, read_log_ends, periods.cuts)
    tables = sources.tables
    if tables is not None and sources.stream.sink.is_files:
        sources.notes.append("the tables are left out: with sink: files, the offsets of rows are not recorded")
        tables = None
    parts = {tp: periods.divide(chain) for tp, chain in sources.chains.items()}
    found: list[tuple[LedgerPeriod, list[Line]]] = []
    for period in periods:
        chains = {tp: divided[period.number] for tp, divided in parts.items()}
        of_period = None if tables is None else tables.of_period(period.number, chains, is_last=period.is_last)
        log_ends = sources.log_ends if period.is_last else {}
        found.append((period, _read_lines(sources, of_period, chains, log_ends, read_objects)))
    if tables is not None:
        _check_whole(sources, [line for _, lines in found for line in lines])
    return PeriodLedger(name, sources.stream.generation, sources.made_at_ms, found, sources.notes, sources.further)


@dataclass(frozen=True, slots=True)
class _Sources:
    """The inputs of a ledger. `notes` and `further` are extended while its lines are made."""

    stream: Stream
    store: Store
    made_at_ms: int
    tables: LedgerTables | None
    chains: Mapping[TopicPartition, Chain]
    log_ends: Mapping[TopicPartition, int]
    notes: list[str]
    further: list[Imbalance]


def _read_sources(
    config: Config,
    name: str,
    services: StagingServices,
    list_committed: Callable[[], Mapping[TopicPartition, CommittedOffset]],
    read_log_ends: ReadLogEnds,
    cuts: rows.Cuts | None = None,
) -> _Sources:
    stream, store, notes = config.stream(name), services.store, list[str]()
    made_at_ms = int(time.time() * 1000)
    with translate_storage_errors():
        dedup = load_dedup_tables(services.catalog, stream) if stream.dedup is not None else None
        tables = _read_tables(config, name, stream, services, dedup, cuts, notes)
    committed = list_committed()
    listed_gaps = gaps.list_gaps_of_topics(store, stream.generation, stream.matches)
    further: list[Imbalance] = []
    chains = _find_chains(store, stream, committed, listed_gaps, further)
    return _Sources(
        stream, store, made_at_ms, tables, chains, _read_log_ends(read_log_ends, chains, notes), notes, further
    )


def _read_lines(
    sources: _Sources,
    tables: LedgerTables | None,
    chains: Mapping[TopicPartition, Chain],
    log_ends: Mapping[TopicPartition, int],
    read_objects: bool,
) -> list[Line]:
    reader = LineReader(sources.store, sources.stream, tables, log_ends, read_objects, sources.notes, sources.further)
    with translate_storage_errors():
        lost = {tp: found for tp, chain in chains.items() if (found := archived.lost_ranges(chain))}
        reader.of_lost = rows.count_lost(tables.view, lost) if tables is not None and lost else {}
        return [reader.with_differences(reader.line(chain), chain) for chain in chains.values()]


def _check_whole(sources: _Sources, lines: Sequence[Line]) -> None:
    """Add imbalances for rows that belong to no line, and for too many rows that the first sweep left out."""
    tables = sources.tables
    if tables is None:
        return
    sources.further.extend(_rows_without_chain(tables, sources.chains))
    if tables.swept is not None:
        sources.further.extend(_left_out_too_many(tables.swept.beginning, lines, sources.notes))


def _find_chains(
    store: Store,
    stream: Stream,
    committed: Mapping[TopicPartition, CommittedOffset],
    listed_gaps: Sequence[Gap],
    further: list[Imbalance],
) -> dict[TopicPartition, Chain]:
    """Return the stream's chains, sorted. A chain that cannot be read is added to `further`."""

    def find(tp: TopicPartition) -> Chain | Imbalance | None:
        try:
            return archived.find_chain(store, stream.generation, tp, committed.get(tp), listed_gaps)
        except ChainBroken as error:
            return Imbalance(tp, 0, 0, str(error))
        except WaybillError:
            raise
        except Exception as error:  # of this chain alone: the ledger shows the other chains, and does not balance
            logger.exception("the stack trace of the chain %s", tp)
            return Imbalance(tp, 0, 0, str(UnexpectedFailure(f"the chain {tp}", error)))

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
    config: Config,
    name: str,
    stream: Stream,
    services: StagingServices,
    dedup: DedupTables | None,
    cuts: rows.Cuts | None,
    notes: list[str],
) -> LedgerTables | None:
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
        hold = None  # the plan was published between the two reads
    swept = None
    if stream.dedup is not None:
        why = "there was no dedup sweep yet"
        found = why if dedup is None else rows.count_swept(loaded.main, dedup, stream, cuts)
        if isinstance(found, str):
            notes.append(f"the tables of dedup are left out: {found}")
        else:
            swept = found
    return LedgerTables(
        view,
        rows.count_main(loaded.main, stream, cuts),
        rows.count_quarantine(view, stream, half_moved, cuts),
        None if hold is None else rows.count_held(hold, stream, cuts),
        {} if hold is None else hold.staged.end,
        swept,
        half_moved,
    )


def _rows_without_chain(tables: LedgerTables, chains: Mapping[TopicPartition, Chain]) -> list[Imbalance]:
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
    """Return an imbalance if more rows are missing than the first sweep left out; only their sum is recorded."""
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
