"""The range that a sweep may be asked for, and the start of the first sweep."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest
from pyiceberg.table import Table
from table_history import history

from waybill.base.errors import ConfigError
from waybill.config.names import TopicPartition
from waybill.tables.dedup.first_sweep import (
    check_range,
    check_since,
    find_first_sweep_start,
    format_first_sweep_start,
    format_instant,
    parse_instant,
)
from waybill.tables.iceberg import FirstSweepStart
from waybill.tables.iceberg.progress import progress_text
from waybill.tables.iceberg.state import PROGRESS_PROPERTY, ancestry

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
A = TopicPartition("flights", 0)
BEGINNING = FirstSweepStart(since_ms=2_500, snapshot=2, sequence=2, committed_ms=2_000, rows=1_234, progress={A: 7})


def with_snapshots(table: Table, *properties: dict[str, str]) -> Table:
    """Give the table snapshots that were committed at 1000, 2000, … ms."""
    metadata = history(*properties)
    made = [s.model_copy(update={"timestamp_ms": s.snapshot_id * 1000}) for s in metadata.snapshots]
    table.metadata = metadata.model_copy(update={"snapshots": made})
    return table


def first_start(table: Table, since_ms: int) -> FirstSweepStart:
    found = find_first_sweep_start(table, list(ancestry(table.metadata))[::-1], since_ms)
    assert found is not None
    return found


# --- the requested range ---


@pytest.mark.parametrize("text", ["2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "2026-01-31T12:00+00:00"])
def test_instant_is_parsed_to_utc(text: str) -> None:
    assert parse_instant("since", text) == NOON


@pytest.mark.parametrize(
    ("text", "why"),
    [("yesterday", "is not a time"), ("2026-02-31T00:00:00Z", "is not a time"), ("2026-01-31T12:00:00", "zone")],
)
def test_invalid_instant_is_refused_with_its_name(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"^since: '{text}' .*{why}.*: write 2026-01-31T00:00:00Z$"):
        parse_instant("since", text)


@pytest.mark.parametrize(
    ("since", "until"),
    [(None, None), (None, NOON + HOUR), (NOON, None), (NOON - HOUR, NOON), (NOON, NOON), (NOON, NOON + HOUR)],
)
def test_valid_ranges_are_accepted(since: datetime | None, until: datetime | None) -> None:
    check_range(since, until, NOON)


def test_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="since 2026-01-31T12:00:00Z is after until 2026-01-31T11:00:00Z: the range is empty"
    ):
        check_range(NOON, NOON - HOUR, NOON)


def test_since_in_the_future_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"since 2026-01-31T12:00:00\.001Z is in the future: it is .*:00:00Z"):
        check_range(NOON + timedelta(milliseconds=1), None, NOON)


# --- the first sweep ---


def test_first_sweep_start_records_the_progress_at_that_time(table: Table) -> None:
    first, second = ({PROGRESS_PROPERTY: progress_text({A: n}), "total-records": str(n)} for n in (5, 9))
    with_snapshots(table, first, {"total-records": "5"}, second)
    assert first_start(table, 2_001) == FirstSweepStart(2_001, 2, 2, 2_000, 5, {A: 5})
    assert first_start(table, 4_000).progress == {A: 9}


def test_first_sweep_start_records_the_next_progress_if_its_own_has_expired(table: Table) -> None:
    """Only `verify` uses it, and it counts rows too."""
    with_snapshots(table, {"total-records": "5"}, {"total-records": "5", PROGRESS_PROPERTY: progress_text({A: 5})})
    assert first_start(table, 2_000).progress == {A: 5}


def test_first_sweep_start_is_restored_from_its_document() -> None:
    assert FirstSweepStart.of_fields("", BEGINNING.to_fields()) == BEGINNING
    assert format_first_sweep_start(BEGINNING).startswith(
        "1,234 rows that were appended to the table before 1970-01-01T00:00:02.500Z"
    )
    assert format_instant(-1) == "1969-12-31T23:59:59.999Z"


# --- later sweeps ---


@pytest.mark.parametrize(
    ("since_ms", "beginning", "unswept"),
    [
        (2_500, None, 0),
        (2_500, BEGINNING, 3),  # the same time as the first sweep: a retry
        (2_001, BEGINNING, 0),  # no snapshot in between
        (3_000, BEGINNING, 1),
        (9_999, BEGINNING, 0),
    ],
)
def test_since_that_leaves_nothing_out_is_accepted(
    table: Table, since_ms: int, beginning: FirstSweepStart | None, unswept: int, caplog: pytest.LogCaptureFixture
) -> None:
    """`unswept`: the number of unswept snapshots, of those at 3, 4 and 5 s."""
    with_snapshots(table, *({} for _ in range(5)))
    snapshots = table.metadata.snapshots[2 : 2 + unswept]
    with caplog.at_level(logging.INFO):
        check_since(table, since_ms, beginning, snapshots)
    assert (since_ms == 2_500 and beginning is not None) != ("leaves nothing out" in caplog.text)


@pytest.mark.parametrize("beginning", [None, BEGINNING])
def test_since_that_leaves_out_more_rows_is_refused(table: Table, beginning: FirstSweepStart | None) -> None:
    with_snapshots(table, *({} for _ in range(5)))
    with pytest.raises(ConfigError, match=r"since .*:04Z: dedup has swept .* 1 snapshots of .*of .*:03Z, .*drop"):
        check_since(table, 4_000, beginning, table.metadata.snapshots[2:])


def test_since_before_the_rows_left_out_is_refused(table: Table) -> None:
    with pytest.raises(ConfigError, match=r"planned the first sweep, and left out .*\(1,234 rows\), for good"):
        check_since(table, 2_000, BEGINNING, [], planned=True)
