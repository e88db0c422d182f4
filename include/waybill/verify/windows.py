"""Offsets in windows: how all topic-partitions are gone through together in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

__all__ = ["LAST_OFFSET", "offset_windows", "ranges_of"]


LAST_OFFSET = (1 << 63) - 1


def offset_windows(ranges: Iterable[tuple[int, int]], budget: int) -> Iterator[tuple[int, int]]:
    """Cut the axis of offsets into windows that hold at most about `budget` offsets of all `ranges` together.

    The windows are in order, do not overlap and leave nothing out: the first starts at 0 and the last has no end but
    that of int64. A window holds a single offset of each range at least.
    """
    events: dict[int, int] = {}
    for first, following in ranges:
        if first < following:
            events[first] = events.get(first, 0) + 1
            events[following] = events.get(following, 0) - 1
    start, room, active = 0, budget, 0
    positions = sorted(events)
    for position, until in pairwise(positions):
        active += events[position]
        while active and (until - position) * active > room:
            position += max(room // active, 0 if room < budget else 1)
            yield start, position
            start, room = position, budget
        room -= (until - position) * active
    yield start, LAST_OFFSET


def ranges_of(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ascending offsets as ranges `[first, next)`."""
    first = following = None
    for offset in offsets:
        if first is None or offset != following:
            if first is not None and following is not None:
                yield first, following
            first = offset
        following = offset + 1
    if first is not None and following is not None:
        yield first, following
