"""When the window that sweeps see is an alert, and what that says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from waybill.config import Dedup
from waybill.dedup.alert import Window, alert_of
from waybill.dedup.index.manifest import IndexOf, Manifest
from waybill.dedup.index.runs import Run
from waybill.names import TopicPartition
from waybill.tables.dedup import NO_HORIZON_MS, SweepState

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
NOW_MS = 20_000 * DAY_MS
MIB = 1 << 20
SETTINGS = Dedup.model_validate({"window": "28d", "floor": "24h", "index_budget_bytes": "8MiB"})


def state(horizon_ms: int) -> SweepState:
    """After a sweep of two topic-partitions, of which one has been quiet for a week."""
    watermarks = {TopicPartition("t", 0): NOW_MS, TopicPartition("t", 1): NOW_MS - 7 * DAY_MS}
    return SweepState(None, watermarks, horizon_ms)


def index(size_bytes: int, span_ms: int = 28 * DAY_MS, buckets: int = 1) -> Manifest:
    """Runs in one bucket, of two of the same size that overlap."""
    older = Run(0, 1, 1, 500, NOW_MS - span_ms, NOW_MS - 60_000, "older", size_bytes // 2 - 100, 50, 0, "f", 100, 0)
    newer = replace(older, min_arrived_ms=NOW_MS - span_ms // 2, max_arrived_ms=NOW_MS, path="newer")
    return replace(Manifest.empty(IndexOf("uuid", ("message_id",), buckets)), runs=(older, newer))


@pytest.mark.parametrize(
    ("horizon_ms", "effective_ms"),
    [
        (NO_HORIZON_MS, 28 * DAY_MS),
        (NOW_MS - 35 * DAY_MS, 28 * DAY_MS),
        (NOW_MS - 28 * DAY_MS, 28 * DAY_MS),
        (NOW_MS - 28 * DAY_MS + 1, 28 * DAY_MS - 1),
        (NOW_MS - 5 * HOUR_MS, 5 * HOUR_MS),
        (NOW_MS + 1, 0),
    ],
)
def test_the_window_counts_from_the_newest_message(horizon_ms: int, effective_ms: int) -> None:
    assert Window.of(state(horizon_ms), SETTINGS).effective_ms == effective_ms


def test_before_the_first_row_the_window_is_whole() -> None:
    assert Window.of(SweepState(), SETTINGS).is_whole


@pytest.mark.parametrize(
    ("seen_ms", "size_bytes", "below"),
    [
        (28 * DAY_MS, 8 * MIB, None),
        (28 * DAY_MS - 1, 8 * MIB, "dedup.window"),
        (28 * DAY_MS - 1, 4 * MIB, "dedup.window"),
        (28 * DAY_MS - 1, 4 * MIB - 1, None),
        (DAY_MS, 1 * MIB, None),
        (DAY_MS - 1, 1 * MIB, "dedup.floor"),
        (0, 8 * MIB, "dedup.floor"),
    ],
)
def test_less_than_promised_is_an_alert_if_the_budget_took_it_and_less_than_the_floor_always(
    seen_ms: int, size_bytes: int, below: str | None
) -> None:
    alert = alert_of("s", SETTINGS, Window.of(state(NOW_MS - seen_ms), SETTINGS), index(size_bytes))
    assert (alert is not None) is (below is not None)
    assert alert is None or f"back, less than {below}: " in alert


def test_an_index_that_nobody_can_read_excuses_nothing() -> None:
    window = Window.of(state(NOW_MS - 27 * DAY_MS), SETTINGS)
    assert alert_of("s", SETTINGS, window, None) is not None


def test_an_alert_names_effective_promised_and_floor_and_the_remedy() -> None:
    window = Window.of(state(NOW_MS - 7 * DAY_MS - 1), SETTINGS)
    assert alert_of("flights", SETTINGS, window, index(6 * MIB, 7 * DAY_MS)) == (
        "flights: dedup sees 7d back, less than dedup.window: 28d are promised (dedup.window), and the floor is 1d "
        "(dedup.floor). A message that comes again later than that counts as new. The key index has 1,000 keys in "
        "6.3 MB, 75.0% of the 8MiB that it may have. Raise dedup.index_budget_bytes to 24MiB (about what the whole "
        "window takes), and the window grows as time goes on; or promise less in dedup.window"
    )


@pytest.mark.parametrize(
    ("effective_ms", "text"),
    [(0, "0s"), (999, "0s"), (59_000, "59s"), (90 * 60_000, "1h 30m"), (2 * DAY_MS - 1, "1d 23h"), (DAY_MS + 1, "1d")],
)
def test_a_window_is_shown_in_its_two_largest_units(effective_ms: int, text: str) -> None:
    assert str(Window(effective_ms, 28 * DAY_MS, DAY_MS)) == f"{text} of 28d (floor 1d)"


def test_a_large_window_wants_whole_gibibytes() -> None:
    window = Window.of(state(NOW_MS - 30 * 60_000), SETTINGS)
    alert = alert_of("flights", SETTINGS, window, index(8 * MIB, 30 * 60_000))
    assert alert is not None
    assert "dedup.index_budget_bytes to 11GiB (" in alert


def test_what_the_window_takes_goes_by_what_the_runs_hold_and_not_by_what_is_left_of_the_window() -> None:
    window = Window.of(state(NOW_MS - 270_000), SETTINGS)  # one bucket lost all but the last minutes
    alert = alert_of("flights", SETTINGS, window, index(6 * MIB, 21 * DAY_MS, buckets=4))
    assert alert is not None
    assert "dedup.index_budget_bytes to 32MiB (" in alert


def test_where_the_budget_has_room_there_is_nothing_to_do_but_wait() -> None:
    window = Window.of(state(NOW_MS - 5 * HOUR_MS - 61_000), SETTINGS)
    alert = alert_of("flights", SETTINGS, window, index(8 * MIB))
    assert alert is not None
    assert "flights: dedup sees 5h 1m back, less than dedup.floor: " in alert
    assert alert.endswith(
        "of the 8MiB that it may have. That is room enough: the window grows as time goes on, and nothing is to be done"
    )
