"""The window over which sweeps compare keys, and the alert about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from waybill.config.models import Dedup
from waybill.config.names import TopicPartition
from waybill.tables.dedup.index.manifest import IndexIdentity, Manifest
from waybill.tables.dedup.index.sorted_runs import SortedRun
from waybill.tables.dedup.status import DedupWindow, window_alert
from waybill.tables.iceberg.dedup import NO_HORIZON_MS, SweepState

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
NOW_MS = 20_000 * DAY_MS
MIB = 1 << 20
SETTINGS = Dedup.model_validate({"window": "28d", "floor": "24h", "index_budget_bytes": "8MiB"})


def state(horizon_ms: int) -> SweepState:
    """Return the state after a sweep of two topic-partitions, one of which had no rows for a week."""
    watermarks = {TopicPartition("t", 0): NOW_MS, TopicPartition("t", 1): NOW_MS - 7 * DAY_MS}
    return SweepState(None, watermarks, horizon_ms)


def index(size_bytes: int, span_ms: int = 28 * DAY_MS, buckets: int = 1) -> Manifest:
    """Return a manifest with two overlapping runs of the same size in one bucket."""
    older = SortedRun(
        0, 1, 1, 500, NOW_MS - span_ms, NOW_MS - 60_000, "older", size_bytes // 2 - 100, 50, 0, "f", 100, 0
    )
    newer = replace(older, min_arrived_ms=NOW_MS - span_ms // 2, max_arrived_ms=NOW_MS, path="newer")
    return replace(Manifest.empty(IndexIdentity("uuid", ("message_id",), buckets)), runs=(older, newer))


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
def test_window_reaches_back_from_the_newest_message(horizon_ms: int, effective_ms: int) -> None:
    assert DedupWindow.of(state(horizon_ms), SETTINGS).effective_ms == effective_ms


def test_window_is_whole_before_the_first_row() -> None:
    assert DedupWindow.of(SweepState(), SETTINGS).is_whole


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
def test_alert_is_raised_below_the_window_if_the_budget_is_the_reason_and_always_below_the_floor(
    seen_ms: int, size_bytes: int, below: str | None
) -> None:
    alert = window_alert("s", SETTINGS, DedupWindow.of(state(NOW_MS - seen_ms), SETTINGS), index(size_bytes))
    assert (alert is not None) is (below is not None)
    assert alert is None or f", less than {below}: " in alert


def test_alert_is_raised_below_the_window_when_there_is_no_manifest() -> None:
    window = DedupWindow.of(state(NOW_MS - 27 * DAY_MS), SETTINGS)
    assert window_alert("s", SETTINGS, window, None) is not None


def test_alert_states_the_three_lengths_and_the_remedy() -> None:
    window = DedupWindow.of(state(NOW_MS - 7 * DAY_MS - 1), SETTINGS)
    assert window_alert("flights", SETTINGS, window, index(6 * MIB, 7 * DAY_MS)) == (
        "flights: sweeps compare keys over 7d, less than dedup.window: dedup.window is 28d, and dedup.floor is 1d. A "
        "message that is repeated after a longer time counts as new. The key index has 1,000 keys in 6.3 MB, 75.0% of "
        "its budget of 8MiB. Raise dedup.index_budget_bytes to 24MiB (about the index size of the whole window), and "
        "the window grows with time; or lower dedup.window"
    )


@pytest.mark.parametrize(
    ("effective_ms", "text"),
    [(0, "0s"), (999, "0s"), (59_000, "59s"), (90 * 60_000, "1h 30m"), (2 * DAY_MS - 1, "1d 23h"), (DAY_MS + 1, "1d")],
)
def test_window_is_formatted_in_its_two_largest_units(effective_ms: int, text: str) -> None:
    assert str(DedupWindow(effective_ms, 28 * DAY_MS, DAY_MS)) == f"{text} of 28d (floor 1d)"


def test_alert_suggests_a_large_budget_in_whole_gibibytes() -> None:
    window = DedupWindow.of(state(NOW_MS - 30 * 60_000), SETTINGS)
    alert = window_alert("flights", SETTINGS, window, index(8 * MIB, 30 * 60_000))
    assert alert is not None
    assert "dedup.index_budget_bytes to 11GiB (" in alert


def test_suggested_budget_is_estimated_from_the_time_span_of_the_runs() -> None:
    window = DedupWindow.of(state(NOW_MS - 270_000), SETTINGS)  # one bucket has lost all but the last minutes
    alert = window_alert("flights", SETTINGS, window, index(6 * MIB, 21 * DAY_MS, buckets=4))
    assert alert is not None
    assert "dedup.index_budget_bytes to 32MiB (" in alert


def test_alert_asks_for_no_action_when_the_budget_suffices() -> None:
    window = DedupWindow.of(state(NOW_MS - 5 * HOUR_MS - 61_000), SETTINGS)
    alert = window_alert("flights", SETTINGS, window, index(8 * MIB))
    assert alert is not None
    assert "flights: sweeps compare keys over 5h 1m, less than dedup.floor: " in alert
    assert alert.endswith(
        "of its budget of 8MiB. The budget suffices: the window grows with time, and no action is needed"
    )
