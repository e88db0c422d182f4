"""The line of one chain: its terms from the archive and from the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from waybill.base.errors import ChainBroken, CorruptBatch, ObjectMissing
from waybill.config.models import Stream
from waybill.config.names import TopicPartition
from waybill.services.store import Store
from waybill.tables.backfill.between import HalfMoved
from waybill.tables.iceberg import Progress
from waybill.tables.quarantine.view import View
from waybill.watch.ledger import archived, rows
from waybill.watch.ledger.archived import Chain
from waybill.watch.ledger.balance import Imbalance, Line, LogTerms, MessageTerms, RowTerms
from waybill.watch.ledger.differences import find_differences


@dataclass(frozen=True, slots=True)
class LedgerTables:
    """The tables of a stream as they were loaded, with the rows of each topic-partition in them."""

    view: View
    main: rows.RowCounts
    quarantine: rows.RowCounts
    held: rows.RowCounts | None
    held_end: Progress
    """Where the held plan ends; empty if nothing is held."""
    swept: rows.SweptCounts | None
    half_moved: HalfMoved | None

    def of_period(self, period: int, chains: Mapping[TopicPartition, Chain], *, is_last: bool) -> LedgerTables:
        """Return the rows of one period. `chains`: the part of each chain that was archived in it."""

        def clip(progress: Progress) -> Progress:
            """Return the progress within the period.

            In the last period, progress beyond the end of the chain is kept, since it is an error.
            """
            first = {tp: max(offset, chains[tp].start_offset) for tp, offset in progress.items() if tp in chains}
            return first if is_last else {tp: min(offset, chains[tp].end_offset) for tp, offset in first.items()}

        return replace(
            self,
            view=replace(self.view, progress=clip(self.view.progress)),
            main=self.main.of_period(period),
            quarantine=self.quarantine.of_period(period),
            held=None if self.held is None else self.held.of_period(period),
            held_end=clip(self.held_end),
            swept=None if self.swept is None else self.swept.of_period(period),
        )


class LineReader:
    """Makes the line of a chain.

    Parts that are left out are added to `notes`, imbalances that belong to no line to `further`.
    """

    def __init__(
        self,
        store: Store,
        stream: Stream,
        tables: LedgerTables | None,
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
        """Return the line. A chain that cannot be read becomes an imbalance, and its messages are unknown."""
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
        """Return the line. If it does not balance, add the objects whose messages and rows differ.

        With `sink: files` the tables do not hold the offsets of rows, and the line is not changed. It also stays if no
        object differs: then the stored counts are wrong.
        """
        tables, messages = self._tables, line.messages
        if tables is None or messages is None or self._stream.sink.is_files or tables.half_moved is not None:
            return line
        if not any(messages.imbalances(line.tp, line.log)):
            return line
        found = find_differences(self._store, self._stream.generation, chain, tables.view, messages.progress)
        return replace(line, differences=found)

    def _count_messages(self, chain: Chain, progress: int) -> tuple[int | None, int | None]:
        """Return how many messages the chain has, if its objects are read, and how many are not partitioned yet.

        The second number is None if nothing is partitioned yet, and the objects are not read.
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
        unique, duplicates, unswept = swept.unique.rows[tp], swept.duplicates.rows[tp], swept.unswept.rows[tp]
        left_out = 0
        if swept.beginning is not None and tp in swept.beginning.progress:
            left_out = max(tables.main.rows[tp] - unique - duplicates - unswept, 0)
        return RowTerms(unique, duplicates, unswept, left_out)
