"""The offsets that a backfill replaces: a person's choice, and ranges that the archive and the table hold.

A choice is checked before anything is stored. The error for an invalid choice lists the valid values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

import pyarrow as pa
from pyiceberg.table import Table

from waybill.base.errors import BackfillRefused
from waybill.config import names
from waybill.config.models import Stream
from waybill.config.names import TopicPartition, parse_offsets
from waybill.tables.backfill.ranges import OffsetRanges
from waybill.tables.iceberg import Progress, StreamTables
from waybill.tables.quarantine.offset_sets import by_topic_partition
from waybill.tables.staging.services import StagingServices

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class RangeChoice:
    """The range that a person chose. Topic-partitions and times are combined with AND."""

    offsets: Mapping[TopicPartition, tuple[int | None, int | None]]
    """First and next offset of each topic-partition; None: from the start, to the end."""
    topic_partitions: tuple[TopicPartition, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    everything: bool = False

    @classmethod
    def parse(
        cls,
        *,
        offsets: Sequence[str] = (),
        topic_partitions: Sequence[str] = (),
        since: str | None = None,
        until: str | None = None,
        everything: bool = False,
    ) -> Self:
        """Parse the options of a command line or a form.

        Raises `BackfillRefused` for options that cannot be parsed, contradict each other, or choose nothing.
        """
        chosen = dict(map(_parse_offsets, offsets))
        tps = tuple(map(_parse_tp, topic_partitions))
        begin, end = (_parse_time(option, text) for option, text in (("since", since), ("until", until)))
        if chosen and (tps or begin or end or everything):
            raise BackfillRefused("give offsets, or topic-partitions and a time range, or everything: not several")
        if everything and (tps or begin or end):
            raise BackfillRefused(
                "everything is chosen, and topic-partitions or a time range as well: give one of them"
            )
        if not (chosen or tps or begin or end or everything):
            raise BackfillRefused(
                "nothing is chosen: give offsets such as flights/0@100-199, topic-partitions such as flights/0, a time "
                "range, or everything"
            )
        if begin and end and begin >= end:
            raise BackfillRefused(
                f"the time range is empty or reversed: since {begin:%Y-%m-%dT%H:%M:%SZ} until {end:%Y-%m-%dT%H:%M:%SZ}"
            )
        return cls(chosen, tps, begin, end, everything)


def _parse_offsets(text: str) -> tuple[TopicPartition, tuple[int | None, int | None]]:
    try:
        return parse_offsets(text)
    except ValueError as error:
        raise BackfillRefused(str(error)) from error


def _parse_tp(text: str) -> TopicPartition:
    try:
        return TopicPartition.parse(text.strip())
    except ValueError as error:
        raise BackfillRefused(str(error)) from error


def _parse_time(option: str, text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise BackfillRefused(f"{option} {text!r} is no time such as 2026-11-22T10:00:00Z: {error}") from error
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


# --- what can be chosen -----------------------------------------------------------------------------------------------


def available_ranges(services: StagingServices, stream: Stream, progress: Progress) -> OffsetRanges:
    """Return the offsets that a backfill may replace: from the start of each chain to the table's progress."""
    found: dict[TopicPartition, tuple[int, int]] = {}
    store = services.store
    for topic in services.archived_topics(stream):
        for chain in store.chains(topic):
            if chain.generation != stream.generation or chain.tp not in progress:
                continue
            first = next(store.list_chain(topic, stream.generation, chain.tp.partition), None)
            if first is not None and first.name.first_offset < progress[chain.tp]:
                found[chain.tp] = (first.name.first_offset, progress[chain.tp])
    return OffsetRanges(found)


def resolve(choice: RangeChoice, available: OffsetRanges, tables: StreamTables) -> OffsetRanges:
    """Return the chosen offsets as ranges.

    A time range becomes, for each topic-partition, the smallest range of offsets with all messages whose Kafka
    timestamps lie in it. Raises `BackfillRefused`, with the valid values, for a choice outside of what is available.
    """
    if not available.by_tp:
        raise BackfillRefused("the table has no rows that the archive holds: there is nothing to backfill")
    whole = bounded_ranges(choice, available)
    if choice.since is None and choice.until is None:
        return whole
    found = _offsets_of_times(tables, choice, whole)
    if not found.by_tp:
        raise BackfillRefused(
            f"no message of {_listed(whole)} has a Kafka timestamp in the time range; the table's column "
            f"kafka_timestamp shows which there are"
        )
    return found


def bounded_ranges(choice: RangeChoice, available: OffsetRanges) -> OffsetRanges:
    """Return the chosen offsets as ranges, without regard to chosen times.

    Raises `BackfillRefused`, with the valid values, for a choice outside of what is available.
    """
    if choice.offsets:
        return OffsetRanges({tp: _bounded(tp, wanted, available) for tp, wanted in choice.offsets.items()})
    for tp in choice.topic_partitions:
        if tp not in available.by_tp:
            raise BackfillRefused(_unknown(tp, available))
    tps = choice.topic_partitions or tuple(available.by_tp)
    return OffsetRanges({tp: available.by_tp[tp] for tp in tps})


def _bounded(tp: TopicPartition, wanted: tuple[int | None, int | None], available: OffsetRanges) -> tuple[int, int]:
    if tp not in available.by_tp:
        raise BackfillRefused(_unknown(tp, available))
    start, end = available.by_tp[tp]
    first, following = (
        given if given is not None else default for given, default in zip(wanted, (start, end), strict=True)
    )
    if first >= following:
        raise BackfillRefused(f"{tp}: the range from {first} to {following - 1} is empty; available: {start}–{end - 1}")
    if first < start or following > end:
        raise BackfillRefused(
            f"{tp}: offsets {first}–{following - 1} are outside of what can be built again: {start}–{end - 1}"
        )
    return first, following


def _unknown(tp: TopicPartition, available: OffsetRanges) -> str:
    return f"there is nothing of {tp} to build again; available: {_listed(available)}"


def _listed(ranges: OffsetRanges) -> str:
    shown = [f"{tp}@{first}-{end - 1}" for tp, (first, end) in list(ranges)[:_SHOWN]]
    more = len(ranges.by_tp) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _offsets_of_times(tables: StreamTables, choice: RangeChoice, whole: OffsetRanges) -> OffsetRanges:
    found: dict[TopicPartition, tuple[int, int]] = {}
    for table in (tables.main, tables.quarantine):
        for rows in _rows_of_times(table, choice):
            offsets = rows.column("offset").to_numpy()
            for tp, places in by_topic_partition(rows):
                if tp not in whole.by_tp:
                    continue
                own = offsets[places]
                own = own[(own >= whole.by_tp[tp][0]) & (own < whole.by_tp[tp][1])]
                if len(own):
                    known = found.get(tp, (names.MAX_OFFSET, 0))
                    found[tp] = min(known[0], int(own.min())), max(known[1], int(own.max()) + 1)
    return OffsetRanges(found)


def _rows_of_times(table: Table, choice: RangeChoice) -> Iterator[pa.RecordBatch]:
    """Yield the messages whose Kafka timestamps lie in the chosen times."""
    if table.current_snapshot() is None:
        return
    conditions = [] if choice.since is None else [f"kafka_timestamp >= '{choice.since.isoformat()}'"]
    conditions += [] if choice.until is None else [f"kafka_timestamp < '{choice.until.isoformat()}'"]
    condition = " and ".join(conditions)
    scan = table.scan(row_filter=condition, selected_fields=("topic", "partition", "offset", "kafka_timestamp"))
    for batch in scan.to_arrow_batch_reader():
        # PyIceberg reads strings with 64-bit offsets, or as dictionaries.
        topics = batch.column("topic").cast(pa.string())
        yield pa.RecordBatch.from_arrays(
            [topics, batch.column("partition"), batch.column("offset")], names=["topic", "partition", "offset"]
        )
