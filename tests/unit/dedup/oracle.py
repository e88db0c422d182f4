"""What dedup sweeps mean, in plain Python: slow, and short enough to be believed. Tests hold the real thing to it.

A stream's life is a sequence of `sweep`s, each of a batch of rows and the state that the one before left. Arrivals,
watermarks and horizons are epoch ms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from waybill.names import TopicPartition

NEVER = -(2**63)
"""No lower bound of arrival, no horizon."""

Key = tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A row of the main table, as far as dedup is concerned."""

    tp: TopicPartition
    offset: int
    kafka_timestamp_ms: int | None
    event_time_ms: int
    key_values: tuple[str | None, ...]
    """Of the columns of `dedup.key`, in their order; of one column `message_id`, if nothing else is said."""


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
    """What one sweep leaves to the next."""

    watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)
    horizon_ms: int = NEVER
    kept: Mapping[Key, tuple[Kept, ...]] = field(default_factory=dict)
    """The kept rows that have a key, by key, in the order in which they were kept."""


@dataclass(frozen=True)
class Swept:
    """What came of a sweep. Of the batch's rows, each is in one of the two lists."""

    kept: tuple[Kept, ...]
    """Rows without a key first; for each key, in the order in which they were judged."""
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
    """One sweep. `high_ms`: when it was planned; `forced_horizon_ms`: what the index's budget made of the horizon."""
    low = low_ms(state.watermarks, {row.tp for row in batch}, window_ms)
    arrived = {row: arrival_ms(row, low[row.tp], high_ms) for row in batch}

    kept = [Kept(row, arrived[row]) for row in batch if key_of(row, key_columns) is None]
    duplicates: list[Duplicate] = []
    all_kept: dict[Key, list[Kept]] = defaultdict(list, {key: list(rows) for key, rows in state.kept.items()})
    for key, rows in by_key(batch, key_columns).items():
        for row in in_order(rows, arrived):
            first = first_seen(all_kept[key], arrived[row], window_ms, state.horizon_ms)
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
    """Before which no row of these topic-partitions counts as arrived: their own watermark, or all but a window's.

    One that is new is taken to be as far behind as the last of the others.
    """
    if not watermarks:
        return dict.fromkeys(tps, NEVER)
    first, latest = min(watermarks.values()), max(watermarks.values())
    return {tp: max(watermarks.get(tp, first), latest - window_ms) for tp in tps}


def arrival_ms(row: Row, low: int, high: int) -> int:
    """Kafka's timestamp or else the event time, within the bounds; the lower one wins, where they contradict."""
    time = row.event_time_ms if row.kafka_timestamp_ms is None else row.kafka_timestamp_ms
    return max(min(time, high), low)


def horizon_after(watermarks: Mapping[TopicPartition, int], window_ms: int) -> int:
    """The horizon that these watermarks allow: no row can still arrive that needs a kept row from before it."""
    low = low_ms(watermarks, watermarks, window_ms)
    return min(low.values()) - window_ms if low else NEVER


def key_of(row: Row, key_columns: Sequence[str]) -> Key | None:
    """A row's key; none if a column of it is null, or if it is an id that Waybill assigned for want of one."""
    if list(key_columns) == ["message_id"] and row.key_values == (f"{row.tp}@{row.offset}",):
        return None
    present = tuple(value for value in row.key_values if value is not None)
    return present if len(present) == len(row.key_values) else None


def by_key(batch: Iterable[Row], key_columns: Sequence[str]) -> dict[Key, list[Row]]:
    """The rows that have a key."""
    rows: dict[Key, list[Row]] = defaultdict(list)
    for row in batch:
        key = key_of(row, key_columns)
        if key is not None:
            rows[key].append(row)
    return rows


def in_order(rows: Iterable[Row], arrived: Mapping[Row, int]) -> list[Row]:
    """Rows of one key as they are judged.

    By offset along each topic-partition, where arrival, for the order only, never goes back; and by it among them.
    """
    latest: dict[TopicPartition, int] = {}
    place: dict[Row, tuple[int, TopicPartition, int]] = {}
    for row in sorted(rows, key=lambda row: row.offset):
        latest[row.tp] = max(latest.get(row.tp, NEVER), arrived[row])
        place[row] = (latest[row.tp], row.tp, row.offset)
    return sorted(place, key=lambda row: place[row])


def first_seen(kept: Sequence[Kept], arrived_ms: int, window_ms: int, horizon_ms: int) -> Kept | None:
    """The kept row, among those of the same key so far, that a row repeats: the latest within window and horizon.

    Two of these cannot have arrived at the same time: the second would have been found to repeat the first.
    """
    since = max(arrived_ms - window_ms, horizon_ms)
    return max((k for k in kept if k.arrived_ms >= since), key=lambda k: k.arrived_ms, default=None)
