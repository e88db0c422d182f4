"""The definition of dedup sweeps in plain Python: slow, and short enough to be checked by reading.

Tests compare the real sweeps with it. A stream's history is a sequence of `sweep`s, each of a batch of rows and the
state after the sweep before. Arrivals, watermarks and horizons are epoch ms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from waybill.config.names import TopicPartition

NEVER = -(2**63)
"""No lower bound of arrival, no horizon."""

Key = tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """The part of a main table's row that dedup uses."""

    tp: TopicPartition
    offset: int
    kafka_timestamp_ms: int | None
    event_time_ms: int
    key_values: tuple[str | None, ...]
    """Values of the columns of `dedup.key`, in their order; by default of the column `message_id` alone."""


@dataclass(frozen=True)
class Kept:
    """A row of the unique table."""

    row: Row
    arrived_ms: int


@dataclass(frozen=True)
class Duplicate:
    """A row of the duplicates table."""

    row: Row
    arrived_ms: int
    first: Kept
    """The kept row that it repeats."""


@dataclass(frozen=True)
class State:
    """The state between two sweeps."""

    watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)
    horizon_ms: int = NEVER
    kept: Mapping[Key, tuple[Kept, ...]] = field(default_factory=dict)
    """The kept rows that have a key, by key, in the order in which they were kept."""


@dataclass(frozen=True)
class Swept:
    """The result of a sweep. Each row of the batch is in one of the two lists."""

    kept: tuple[Kept, ...]
    """Rows without a key first; for each key, in the order in which they were compared."""
    duplicates: tuple[Duplicate, ...]
    state: State


def sweep(
    state: State,
    batch: Sequence[Row],
    *,
    high_ms: int,
    window_ms: int,
    key_columns: Sequence[str] = ("message_id",),
    forced_horizon_ms: int = NEVER,
) -> Swept:
    """Run one sweep. `high_ms`: time of its plan; `forced_horizon_ms`: the horizon that the index's budget requires."""
    low = low_ms(state.watermarks, {row.tp for row in batch}, window_ms)
    arrived = {row: arrival_ms(row, low[row.tp], high_ms) for row in batch}

    kept = [Kept(row, arrived[row]) for row in batch if key_of(row, key_columns) is None]
    duplicates: list[Duplicate] = []
    all_kept: dict[Key, list[Kept]] = defaultdict(list, {key: list(rows) for key, rows in state.kept.items()})
    for key, rows in by_key(batch, key_columns).items():
        for row in in_order(rows, arrived):
            first = repeated_row(all_kept[key], arrived[row], window_ms, state.horizon_ms)
            if first is None:
                all_kept[key].append(Kept(row, arrived[row]))
                kept.append(Kept(row, arrived[row]))
            else:
                duplicates.append(Duplicate(row, arrived[row], first))

    watermarks = dict(state.watermarks)
    for row in batch:
        watermarks[row.tp] = max(watermarks.get(row.tp, NEVER), arrived[row])
    horizon_ms = max(state.horizon_ms, horizon_after(watermarks, window_ms), forced_horizon_ms)
    after = State(watermarks, horizon_ms, {key: tuple(rows) for key, rows in all_kept.items()})
    return Swept(tuple(kept), tuple(duplicates), after)


def low_ms(
    watermarks: Mapping[TopicPartition, int], tps: Iterable[TopicPartition], window_ms: int
) -> dict[TopicPartition, int]:
    """Return the time before which no row of each topic-partition counts as arrived.

    That is its own watermark, or the newest of all minus a window if that is later. A new topic-partition gets the
    oldest watermark.
    """
    if not watermarks:
        return dict.fromkeys(tps, NEVER)
    first, latest = min(watermarks.values()), max(watermarks.values())
    return {tp: max(watermarks.get(tp, first), latest - window_ms) for tp in tps}


def arrival_ms(row: Row, low: int, high: int) -> int:
    """Return Kafka's timestamp, or the event time, within the bounds; if they contradict, the lower one applies."""
    time = row.event_time_ms if row.kafka_timestamp_ms is None else row.kafka_timestamp_ms
    return max(min(time, high), low)


def horizon_after(watermarks: Mapping[TopicPartition, int], window_ms: int) -> int:
    """Return the horizon that these watermarks allow: no row that still arrives can repeat one from before it."""
    low = low_ms(watermarks, watermarks, window_ms)
    return min(low.values()) - window_ms if low else NEVER


def key_of(row: Row, key_columns: Sequence[str]) -> Key | None:
    """Return a row's key; None if a key column is null, or if Waybill assigned the id because there was none."""
    if list(key_columns) == ["message_id"] and row.key_values == (f"{row.tp}@{row.offset}",):
        return None
    present = tuple(value for value in row.key_values if value is not None)
    return present if len(present) == len(row.key_values) else None


def by_key(batch: Iterable[Row], key_columns: Sequence[str]) -> dict[Key, list[Row]]:
    """Return the rows that have a key, by key."""
    rows: dict[Key, list[Row]] = defaultdict(list)
    for row in batch:
        key = key_of(row, key_columns)
        if key is not None:
            rows[key].append(row)
    return rows


def in_order(rows: Iterable[Row], arrived: Mapping[Row, int]) -> list[Row]:
    """Return rows of one key in the order of comparison.

    Along each topic-partition that is by offset. Across topic-partitions it is by arrival, where a row is taken to
    arrive not earlier than those before it in its topic-partition.
    """
    latest: dict[TopicPartition, int] = {}
    place: dict[Row, tuple[int, TopicPartition, int]] = {}
    for row in sorted(rows, key=lambda row: row.offset):
        latest[row.tp] = max(latest.get(row.tp, NEVER), arrived[row])
        place[row] = (latest[row.tp], row.tp, row.offset)
    return sorted(place, key=lambda row: place[row])


def repeated_row(kept: Sequence[Kept], arrived_ms: int, window_ms: int, horizon_ms: int) -> Kept | None:
    """Return the row that a row repeats: of the kept rows of its key, the latest within window and horizon.

    Two of these cannot have arrived at the same time: the second would be a duplicate of the first.
    """
    since = max(arrived_ms - window_ms, horizon_ms)
    return max((k for k in kept if k.arrived_ms >= since), key=lambda k: k.arrived_ms, default=None)
