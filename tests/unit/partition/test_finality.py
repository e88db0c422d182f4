"""When an hour is final: the finalizer's decisions, over all that can come together."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.errors import GenerationConflict
from waybill.names import Period, TopicPartition
from waybill.partition.files_sink.finality import (
    LogView,
    Marker,
    Standing,
    State,
    final_before,
    judge,
    reached_by_all,
    standings,
)
from waybill.store import ListedObject
from waybill.tables.file_inventory import LedgerEntry

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
HOUR = Period("t", datetime(2026, 1, 2, 3, tzinfo=UTC), by_hour=True)
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def entry(name: str, rows: int = 10, plan: str = "p1") -> LedgerEntry:
    return LedgerEntry(HOUR.start, "t", 0, 0, 10, f"s3://bucket/{name}", rows, 100, "", plan)


def there(name: str, size: int = 100) -> ListedObject:
    return ListedObject(name, size, NOW)


# --- how far a topic-partition is ---


@pytest.mark.parametrize(
    ("progress", "watermark", "view", "expected"),
    [
        (10, NOW - timedelta(hours=3), LogView(NOW, {}), (NOW - timedelta(hours=3), False)),
        (10, NOW - timedelta(hours=3), LogView(NOW, {A: 11}), (NOW - timedelta(hours=3), False)),
        (10, NOW - timedelta(hours=3), LogView(NOW, {A: 10}), (NOW, True)),
        (12, NOW - timedelta(hours=3), LogView(NOW, {A: 10}), (NOW, True)),
        (
            10,
            NOW - timedelta(hours=3),
            LogView(NOW, {A: 10}, stopped=frozenset({A})),
            (NOW - timedelta(hours=3), False),
        ),
        (10, NOW + timedelta(hours=1), LogView(NOW, {A: 10}), (NOW + timedelta(hours=1), False)),
        (10, None, LogView(NOW, {A: 10}), (NOW, True)),
        (10, None, LogView(NOW, {}), (None, False)),
        (None, None, LogView(NOW, {A: 10}, empty=frozenset({A})), (NOW, True)),
        (None, None, LogView(NOW, {A: 10}), (None, False)),
        (None, None, LogView(NOW, {A: 10}, empty=frozenset({A}), stopped=frozenset({A})), (None, False)),
        # Retention has emptied the log, and the archive holds what is not partitioned yet.
        (5, NOW - timedelta(hours=3), LogView(NOW, {A: 10}, empty=frozenset({A})), (NOW - timedelta(hours=3), False)),
    ],
)
def test_how_far_a_topic_partition_is(
    progress: int | None, watermark: datetime | None, view: LogView, expected: tuple[datetime | None, bool]
) -> None:
    (found,) = standings(
        [A], {} if progress is None else {A: progress}, {} if watermark is None else {A: ms(watermark)}, view
    )
    assert (found.reached, found.caught_up) == expected


def test_the_one_that_is_furthest_behind_counts() -> None:
    marks = {A: ms(NOW), B: ms(NOW - timedelta(hours=1))}
    found = standings([A, B], {A: 1, B: 1}, marks, LogView(NOW, {}))
    assert [standing.tp for standing in found] == [B, A]
    assert reached_by_all(found) == NOW - timedelta(hours=1)
    assert reached_by_all([*found, Standing(A, None, False)]) is None
    assert reached_by_all([]) is None


def test_lateness_is_waited_for() -> None:
    assert final_before(NOW, timedelta(hours=1)) == NOW - timedelta(hours=1)
    assert final_before(None, timedelta(0)) is None
    assert final_before(datetime(1, 1, 1, tzinfo=UTC), timedelta(hours=1)) is None


# --- what an hour is ---

ENTRIES = [entry("a"), entry("b", plan="p2")]
LISTED = [there("a"), there("b")]
RIGHT = Marker(2, 20, 200, 2)


@pytest.mark.parametrize(
    ("entries", "listed", "marker", "is_marked", "until", "state"),
    [
        (ENTRIES, LISTED, None, False, HOUR.end, State.READY),
        (ENTRIES, LISTED, None, False, HOUR.end - timedelta(seconds=1), State.OPEN),
        (ENTRIES, LISTED, None, False, None, State.OPEN),
        (ENTRIES, LISTED, RIGHT, True, HOUR.end, State.FINAL),
        (ENTRIES, LISTED, RIGHT, True, None, State.FINAL),
        (ENTRIES, LISTED, Marker(1, 10, 100, 1), True, HOUR.end, State.READY),
        (ENTRIES, LISTED, None, True, HOUR.end, State.READY),
        (ENTRIES, LISTED, None, True, None, State.OPEN),
        ([], [], None, True, HOUR.end, State.OPEN),
        (ENTRIES, [*LISTED, there("c")], RIGHT, True, HOUR.end, State.BLOCKED),
        (ENTRIES, LISTED[:1], RIGHT, True, HOUR.end, State.BLOCKED),
        (ENTRIES, [there("a"), there("b", 99)], None, False, HOUR.end, State.BLOCKED),
        ([], [there("c")], None, False, None, State.BLOCKED),
    ],
)
def test_what_an_hour_is(
    entries: list[LedgerEntry],
    listed: list[ListedObject],
    marker: Marker | None,
    is_marked: bool,
    until: datetime | None,
    state: State,
) -> None:
    found = judge(HOUR, entries, listed, marker, is_marked=is_marked, final_before=until)
    assert found.state is state
    assert found.must_lose_marker == (is_marked and state is not State.FINAL)


@given(
    listed=st.sets(st.sampled_from("abcd")),
    known=st.sets(st.sampled_from("abcd")),
    is_marked=st.booleans(),
    revision=st.integers(0, 3),
    seconds=st.none() | st.integers(-1, 1),
)
def test_ready_and_final_mean_that_just_the_ledger_s_files_are_there(
    listed: set[str], known: set[str], is_marked: bool, revision: int, seconds: int | None
) -> None:
    entries = [entry(name) for name in sorted(known)]
    until = None if seconds is None else HOUR.end + timedelta(seconds=seconds)
    marker = Marker(len(known), 10 * len(known), 100 * len(known), revision)
    found = judge(HOUR, entries, [there(n) for n in listed], marker, is_marked=is_marked, final_before=until)
    if found.state in (State.READY, State.FINAL):
        assert listed == known
    if found.state is State.READY:
        assert known
        assert until is not None
        assert until >= HOUR.end
    if found.state is State.FINAL:
        assert is_marked
        assert revision == len({"p1"} if known else ())


def test_a_listing_tells_what_a_marker_says() -> None:
    etag = hashlib.md5(RIGHT.to_json(), usedforsecurity=False).hexdigest()
    assert RIGHT.is_in(ListedObject("k", 1, NOW, etag))
    assert not Marker(2, 20, 200, 3).is_in(ListedObject("k", 1, NOW, etag))
    for other in ("", f"{etag}-1", "0" * 32):  # encrypted by KMS, uploaded in parts
        assert not RIGHT.is_in(ListedObject("k", 1, NOW, other))


def test_a_marker_says_what_is_there() -> None:
    assert Marker.of(ENTRIES) == RIGHT
    assert Marker.from_json(RIGHT.to_json(), "k") == RIGHT
    assert Marker.from_json(b"", "k") is None
    assert Marker.from_json(b'{"v": 1}', "k") is None
    with pytest.raises(GenerationConflict):
        Marker.from_json(b'{"v": 2}', "k")
