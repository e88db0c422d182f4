"""The chain of a topic-partition, drawn to scale, and trends: SVG coordinates, since pages have no inline styles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from waybill.watch.promises.status import TopicPartitionStatus, TrendPoint

WIDTH = 1000.0
"""The width of the view box: `x` and `width` of all segments are within it."""
_TREND_HEIGHT = 24.0
_TREND_WIDTH = 120.0
_TAIL_SHARE = 4
"""The drawn last part of a chain is a quarter longer than the offsets in transit, so that their beginning is
visible."""
_MIN_WIDTH = 2.0
"""The smallest drawn width of a gap, so that a gap of a few offsets among millions is visible."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A range of offsets in one of the rows of a bar."""

    layer: str
    """`kafka`, `s3`, `table` or `unique`."""
    kind: str
    """`range`, or `gap` for an accepted gap."""
    x: float
    width: float
    first: int
    next: int
    """The first offset after it."""
    title: str


@dataclass(frozen=True, slots=True)
class ChainBar:
    """The offsets `[first, next)` of a topic-partition: each row stands for a place, and shows the offsets in it."""

    first: int
    next: int
    rows: tuple[tuple[str, tuple[Segment, ...]], ...]
    """Label and segments: Kafka, S3, table, and with dedup unique."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A line of measured values, oldest left."""

    points: str
    """The attribute `points` of a polyline in a view box of 120 x 24; '' with fewer than two values."""
    title: str
    most: float


def whole_chain(tp: TopicPartitionStatus) -> ChainBar:
    """Return the bar from the first archived offset, or Kafka's first one, to the end of the log."""
    return _bar(tp, min(tp.archived_from, tp.earliest), max(tp.end, tp.committed))


def end_of_chain(tp: TopicPartitionStatus) -> ChainBar:
    """Return the bar of the offsets in transit: from a little before the smallest position to the end."""
    end = max(tp.end, tp.committed)
    behind = min(each for each in (tp.end, tp.committed, tp.published, tp.swept) if each is not None)
    first = max(min(tp.archived_from, tp.earliest), behind - (end - behind) // _TAIL_SHARE - 1)
    return _bar(tp, first, end)


def _bar(tp: TopicPartitionStatus, first: int, end: int) -> ChainBar:
    scale = _Scale(first, end)
    ranges = [("Kafka", "kafka", tp.earliest, tp.end), ("S3", "s3", tp.archived_from, tp.committed)]
    if tp.published is not None:
        ranges.append(("table", "table", tp.archived_from, tp.published))
    if tp.swept is not None:
        ranges.append(("unique", "unique", tp.archived_from, tp.swept))
    gaps = [(gap.first, gap.next, f"{gap.kind} accepted by {gap.by}: {gap.reason}") for gap in tp.gaps]
    rows = []
    for label, layer, start, until in ranges:
        found = [*scale.segments(layer, "range", [(start, until, label)])]
        if layer != "kafka":
            found += scale.segments(layer, "gap", gaps)
        rows.append((label, tuple(found)))
    return ChainBar(first, end, tuple(rows))


@dataclass(frozen=True, slots=True)
class _Scale:
    first: int
    next: int

    def segments(self, layer: str, kind: str, ranges: Iterable[tuple[int, int, str]]) -> Iterator[Segment]:
        """Yield the parts of ranges that are within the bar. Each range is `[start, until)` with its title."""
        length = max(1, self.next - self.first)
        for start, until, title in ranges:
            left, right = max(start, self.first), min(until, self.next)
            if left < right:
                width = max(_MIN_WIDTH, (right - left) * WIDTH / length)
                x = min((left - self.first) * WIDTH / length, WIDTH - width)
                text = f"{title}: offsets {start:,} to {until - 1:,}"
                yield Segment(layer, kind, round(max(0.0, x), 2), round(min(width, WIDTH), 2), start, until, text)


def trend_of(points: Sequence[TrendPoint], limit_seconds: float | None = None) -> Trend:
    """Return the archive lag of a stream over time. The scale reaches at least to `limit_seconds`."""
    known = [(each.at_ms, each.archive_lag_seconds) for each in points if each.archive_lag_seconds is not None]
    if len(known) < 2:
        return Trend("", "not measured yet", 0.0)
    first, last = known[0][0], known[-1][0]
    most = max(value for _, value in known)
    top = max(most, limit_seconds or 0.0, 1.0)
    drawn = " ".join(
        f"{(at - first) * _TREND_WIDTH / max(1, last - first):.1f},{_TREND_HEIGHT - value * _TREND_HEIGHT / top:.1f}"
        for at, value in known
    )
    minutes = (last - first) // 60_000
    return Trend(drawn, f"lag of the last {minutes} min, at most {most:,.0f} s", most)
