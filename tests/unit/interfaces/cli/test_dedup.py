"""`waybill dedup status`: the printed text and the JSON document."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from waybill.interfaces.cli.dedup import print_status
from waybill.tables.dedup.status import Backlog, DedupStatus, DedupWindow, DuplicateCount, KeyIndexFigures
from waybill.tables.dedup.sweep_plan import epoch_ms
from waybill.tables.iceberg import FirstSweepStart

DAY_MS = 86_400_000
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)

STATUS = DedupStatus(
    stream="orders",
    unique="shop.orders_unique",
    swept_snapshot=42,
    swept_at=NOON,
    beginning=None,
    behind=Backlog(0, 0),
    rows=9_940,
    duplicates=60,
    window=DedupWindow(28 * DAY_MS, 28 * DAY_MS, DAY_MS),
    horizon=NOON - timedelta(days=28),
    newest=NOON,
    index=KeyIndexFigures(
        version=7, keys=9_940, bytes=208_740, budget_bytes=1 << 20, runs=16, covers=5, missing_rows=0
    ),
    alert=None,
    counted=[DuplicateCount(NOON - timedelta(hours=1), "eu", None, 20), DuplicateCount(NOON, "eu", "app", 10)],
)


def printed(status: DedupStatus, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    print_status(status, timedelta(days=1))
    ran = capsys.readouterr()
    return ran.out.splitlines(), ran.err


def test_status_of_a_swept_stream(capsys: pytest.CaptureFixture[str]) -> None:
    lines, err = printed(STATUS, capsys)
    assert lines[:4] == [
        "orders: 9,940 rows in shop.orders_unique, 60 duplicates (0.60% of all)",
        "  swept   through snapshot 42 of 2026-01-31T12:00:00Z; nothing to sweep",
        "  window  28d of 28d (floor 1d); rows older than 2026-01-03T12:00:00Z are no longer compared",
        "  index   9,940 keys in 16 sorted runs, 208.7 KB (19.9% of 1MiB), 21.0 bytes a key",
    ]
    assert [line.split() for line in lines[5:]] == [
        ["hour", "topic", "source", "duplicates"],
        ["2026-01-31T11:00:00Z", "eu", "-", "20"],
        ["2026-01-31T12:00:00Z", "eu", "app", "10"],
    ]
    assert err == "orders: 30 duplicates in the 1d before 2026-01-31T12:00:00Z, the arrival of the newest row\n"


def test_status_shows_rows_that_the_first_sweep_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    beginning = FirstSweepStart(epoch_ms(NOON), 41, 6, epoch_ms(NOON) - 1, 1_234_567, {})
    lines, _ = printed(replace(STATUS, beginning=beginning), capsys)
    assert lines[2] == "  since   2026-01-31T12:00:00Z; 1,234,567 older rows left out by the first sweep"
    document = replace(STATUS, beginning=beginning).document()
    assert (document["complete_since"], document["left_out"]) == ("2026-01-31T12:00:00+00:00", 1_234_567)
    document = STATUS.document()
    assert (document["complete_since"], document["left_out"]) == (None, 0)


def test_status_before_the_first_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    first = replace(
        STATUS, swept_snapshot=None, swept_at=None, behind=Backlog(3, 1_000), rows=0, duplicates=0, horizon=None,
        newest=None, index=None, counted=(),
    )  # fmt: skip
    lines, err = printed(first, capsys)
    assert lines == [
        "orders: 0 rows in shop.orders_unique, 0 duplicates",
        "  swept   nothing yet; 3 snapshots with 1,000 rows to sweep",
        "  window  28d of 28d (floor 1d)",
        "  index   none yet: the next sweep builds it from the unique rows",
    ]
    assert err == ""


def test_status_shows_alert_expired_snapshot_and_index_that_is_behind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    index = KeyIndexFigures(version=7, keys=0, bytes=0, budget_bytes=1 << 20, runs=0, covers=4, missing_rows=1_234)
    window = DedupWindow(DAY_MS // 2, 28 * DAY_MS, DAY_MS)
    alert = "orders: sweeps compare keys over 12h"
    status = replace(STATUS, swept_at=None, index=index, window=window, alert=alert, counted=())
    lines, err = printed(status, capsys)
    assert lines[1] == "  swept   through snapshot 42, which has expired since; nothing to sweep"
    assert lines[2].startswith("  window  12h of 28d (floor 1d); ")
    assert (
        lines[3]
        == "  index   0 keys in 0 sorted runs, 0 B (0.0% of 1MiB); 1,234 rows behind: the next sweep catches up"
    )
    assert err.splitlines()[1] == "alert: orders: sweeps compare keys over 12h"


def test_document_has_window_index_and_counts() -> None:
    document = STATUS.document()
    assert document["window"] == {
        "effective_seconds": 2_419_200.0,
        "promised_seconds": 2_419_200.0,
        "floor_seconds": 86_400.0,
    }
    assert document["index"]["bytes_per_key"] == 21.0
    assert document["counted"][1] == {
        "hour": "2026-01-31T12:00:00+00:00",
        "topic": "eu",
        "source": "app",
        "duplicates": 10,
    }
