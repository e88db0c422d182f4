"""When an hour is final: the finalizer's decisions, over all combinations of what it finds."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.base.errors import DocumentTooNew
from waybill.config.names import SinkPeriod, TopicPartition
from waybill.services.store import ListedObject
from waybill.tables.iceberg.file_inventory import InventoryEntry
from waybill.tables.partition.files_sink.hour_state import (
    HourState,
    LogEnds,
    SuccessMarker,
    TimeReached,
    classify_hour,
    earliest_time,
    final_before,
    times_reached,
)

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
HOUR = SinkPeriod("t", datetime(2026, 1, 2, 3, tzinfo=UTC), by_hour=True)
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def entry(name: str, rows: int = 10, plan: str = "p1") -> InventoryEntry:
    return InventoryEntry(HOUR.start, "t", 0, 0, 10, f"s3://bucket/{name}", rows, 100, "", plan)


def listed_object(name: str, size: int = 100) -> ListedObject:
    return ListedObject(name, size, NOW)


# --- the time that a topic-partition has reached ---


@pytest.mark.parametrize(
    ("progress", "watermark", "log_ends", "expected"),
    [
        (10, NOW - timedelta(hours=3), LogEnds(NOW, {}), (NOW - timedelta(hours=3), False)),
        (10, NOW - timedelta(hours=3), LogEnds(NOW, {A: 11}), (NOW - timedelta(hours=3), False)),
        (10, NOW - timedelta(hours=3), LogEnds(NOW, {A: 10}), (NOW, True)),
        (12, NOW - timedelta(hours=3), LogEnds(NOW, {A: 10}), (NOW, True)),
        (
            10,
            NOW - timedelta(hours=3),
            LogEnds(NOW, {A: 10}, stopped=frozenset({A})),
            (NOW - timedelta(hours=3), False),
        ),
        (10, NOW + timedelta(hours=1), LogEnds(NOW, {A: 10}), (NOW + timedelta(hours=1), False)),
        (10, None, LogEnds(NOW, {A: 10}), (NOW, True)),
        (10, None, LogEnds(NOW, {}), (None, False)),
        (None, None, LogEnds(NOW, {A: 10}, empty=frozenset({A})), (NOW, True)),
        (None, None, LogEnds(NOW, {A: 10}), (None, False)),
        (None, None, LogEnds(NOW, {A: 10}, empty=frozenset({A}), stopped=frozenset({A})), (None, False)),
        # Retention has emptied the log, and the archive has messages that are not partitioned yet.
        (5, NOW - timedelta(hours=3), LogEnds(NOW, {A: 10}, empty=frozenset({A})), (NOW - timedelta(hours=3), False)),
    ],
)
def test_a_topic_partition_reaches_its_watermark_or_now_when_caught_up(
    progress: int | None, watermark: datetime | None, log_ends: LogEnds, expected: tuple[datetime | None, bool]
) -> None:
    (found,) = times_reached(
        [A], {} if progress is None else {A: progress}, {} if watermark is None else {A: ms(watermark)}, log_ends
    )
    assert (found.reached, found.caught_up) == expected


def test_the_topic_partition_furthest_behind_determines_the_earliest_time() -> None:
    marks = {A: ms(NOW), B: ms(NOW - timedelta(hours=1))}
    found = times_reached([A, B], {A: 1, B: 1}, marks, LogEnds(NOW, {}))
    assert [time.tp for time in found] == [B, A]
    assert earliest_time(found) == NOW - timedelta(hours=1)
    assert earliest_time([*found, TimeReached(A, None, False)]) is None
    assert earliest_time([]) is None


def test_hours_are_final_only_after_the_configured_lateness() -> None:
    assert final_before(NOW, timedelta(hours=1)) == NOW - timedelta(hours=1)
    assert final_before(None, timedelta(0)) is None
    assert final_before(datetime(1, 1, 1, tzinfo=UTC), timedelta(hours=1)) is None


# --- the state of an hour ---

ENTRIES = [entry("a"), entry("b", plan="p2")]
LISTED = [listed_object("a"), listed_object("b")]
RIGHT = SuccessMarker(2, 20, 200, 2)


@pytest.mark.parametrize(
    ("entries", "listed", "marker", "is_marked", "until", "state"),
    [
        (ENTRIES, LISTED, None, False, HOUR.end, HourState.READY),
        (ENTRIES, LISTED, None, False, HOUR.end - timedelta(seconds=1), HourState.OPEN),
        (ENTRIES, LISTED, None, False, None, HourState.OPEN),
        (ENTRIES, LISTED, RIGHT, True, HOUR.end, HourState.FINAL),
        (ENTRIES, LISTED, RIGHT, True, None, HourState.FINAL),
        (ENTRIES, LISTED, SuccessMarker(1, 10, 100, 1), True, HOUR.end, HourState.READY),
        (ENTRIES, LISTED, None, True, HOUR.end, HourState.READY),
        (ENTRIES, LISTED, None, True, None, HourState.OPEN),
        ([], [], None, True, HOUR.end, HourState.OPEN),
        (ENTRIES, [*LISTED, listed_object("c")], RIGHT, True, HOUR.end, HourState.BLOCKED),
        (ENTRIES, LISTED[:1], RIGHT, True, HOUR.end, HourState.BLOCKED),
        (ENTRIES, [listed_object("a"), listed_object("b", 99)], None, False, HOUR.end, HourState.BLOCKED),
        ([], [listed_object("c")], None, False, None, HourState.BLOCKED),
    ],
)
def test_the_state_of_an_hour_follows_from_inventory_listing_and_marker(
    entries: list[InventoryEntry],
    listed: list[ListedObject],
    marker: SuccessMarker | None,
    is_marked: bool,
    until: datetime | None,
    state: HourState,
) -> None:
    found = classify_hour(HOUR, entries, listed, marker, is_marked=is_marked, final_before=until)
    assert found.state is state
    assert found.has_stale_marker == (is_marked and state is not HourState.FINAL)


@given(
    listed=st.sets(st.sampled_from("abcd")),
    known=st.sets(st.sampled_from("abcd")),
    is_marked=st.booleans(),
    revision=st.integers(0, 3),
    seconds=st.none() | st.integers(-1, 1),
)
def test_an_hour_is_ready_or_final_only_with_exactly_the_files_of_the_inventory(
    listed: set[str], known: set[str], is_marked: bool, revision: int, seconds: int | None
) -> None:
    entries = [entry(name) for name in sorted(known)]
    until = None if seconds is None else HOUR.end + timedelta(seconds=seconds)
    marker = SuccessMarker(len(known), 10 * len(known), 100 * len(known), revision)
    found = classify_hour(
        HOUR, entries, [listed_object(n) for n in listed], marker, is_marked=is_marked, final_before=until
    )
    if found.state in (HourState.READY, HourState.FINAL):
        assert listed == known
    if found.state is HourState.READY:
        assert known
        assert until is not None
        assert until >= HOUR.end
    if found.state is HourState.FINAL:
        assert is_marked
        assert revision == len({"p1"} if known else ())


def test_the_listed_etag_identifies_the_content_of_a_marker() -> None:
    etag = hashlib.md5(RIGHT.to_json(), usedforsecurity=False).hexdigest()
    assert RIGHT.matches_etag(ListedObject("k", 1, NOW, etag))
    assert not SuccessMarker(2, 20, 200, 3).matches_etag(ListedObject("k", 1, NOW, etag))
    for other in ("", f"{etag}-1", "0" * 32):  # encrypted by KMS, uploaded in parts
        assert not RIGHT.matches_etag(ListedObject("k", 1, NOW, other))


def test_a_marker_is_read_back_and_a_newer_version_is_refused() -> None:
    assert SuccessMarker.of(ENTRIES) == RIGHT
    assert SuccessMarker.parse("k", RIGHT.to_json()) == RIGHT
    assert SuccessMarker.parse("k", b"") is None
    assert SuccessMarker.parse("k", b'{"v": 1}') is None
    with pytest.raises(DocumentTooNew):
        SuccessMarker.parse("k", b'{"v": 2}')
