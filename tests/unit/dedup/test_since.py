"""Which range a sweep may be asked for, and where the first one begins."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest
from pyiceberg.table import Table
from table_history import history

from waybill.dedup.first_sweep import begin_since, beginning_text, check_range, check_since, instant_text, parse_instant
from waybill.errors import ConfigError
from waybill.names import TopicPartition
from waybill.tables import Beginning
from waybill.tables.progress import progress_text
from waybill.tables.state import PROGRESS_PROPERTY, ancestry

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
A = TopicPartition("flights", 0)
BEGINNING = Beginning(since_ms=2_500, snapshot=2, sequence=2, committed_ms=2_000, rows=1_234, progress={A: 7})


def with_snapshots(table: Table, *properties: dict[str, str]) -> Table:
    """Committed at 1000, 2000, … ms."""
    metadata = history(*properties)
    made = [s.model_copy(update={"timestamp_ms": s.snapshot_id * 1000}) for s in metadata.snapshots]
    table.metadata = metadata.model_copy(update={"snapshots": made})
    return table


def begun(table: Table, since_ms: int) -> Beginning:
    found = begin_since(table, list(ancestry(table.metadata))[::-1], since_ms)
    assert found is not None
    return found


# --- what may be asked for ---


@pytest.mark.parametrize("text", ["2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "2026-01-31T12:00+00:00"])
def test_a_time_is_read_in_utc(text: str) -> None:
    assert parse_instant("since", text) == NOON


@pytest.mark.parametrize(
    ("text", "why"),
    [("yesterday", "is no time"), ("2026-02-31T00:00:00Z", "is no time"), ("2026-01-31T12:00:00", "zone")],
)
def test_what_is_no_time_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"^since: '{text}' .*{why}.*: write 2026-01-31T00:00:00Z$"):
        parse_instant("since", text)


@pytest.mark.parametrize(
    ("since", "until"),
    [(None, None), (None, NOON + HOUR), (NOON, None), (NOON - HOUR, NOON), (NOON, NOON), (NOON, NOON + HOUR)],
)
def test_ranges_that_may_be_asked_for(since: datetime | None, until: datetime | None) -> None:
    check_range(since, until, NOON)


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ConfigError, match="since 2026-01-31T12:00:00Z is after until 2026-01-31T11:00:00Z: nothing"):
        check_range(NOON, NOON - HOUR, NOON)


def test_a_time_that_is_yet_to_come_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"since 2026-01-31T12:00:00\.001Z is in the future: it is .*:00:00Z"):
        check_range(NOON + timedelta(milliseconds=1), None, NOON)


# --- where the first sweep begins ---


def test_the_progress_of_that_time_is_remembered(table: Table) -> None:
    first, second = ({PROGRESS_PROPERTY: progress_text({A: n}), "total-records": str(n)} for n in (5, 9))
    with_snapshots(table, first, {"total-records": "5"}, second)
    assert begun(table, 2_001) == Beginning(2_001, 2, 2, 2_000, 5, {A: 5})
    assert begun(table, 4_000).progress == {A: 9}


def test_where_its_progress_has_expired_the_next_one_that_is_known_counts(table: Table) -> None:
    """It is for `verify` alone, which counts as well."""
    with_snapshots(table, {"total-records": "5"}, {"total-records": "5", PROGRESS_PROPERTY: progress_text({A: 5})})
    assert begun(table, 2_000).progress == {A: 5}


def test_a_beginning_comes_back_from_its_document() -> None:
    assert Beginning.from_document(BEGINNING.document()) == BEGINNING
    assert beginning_text(BEGINNING).startswith("1,234 rows that the table had gained before 1970-01-01T00:00:02.500Z")
    assert instant_text(-1) == "1969-12-31T23:59:59.999Z"


# --- where sweeps have begun before ---


@pytest.mark.parametrize(
    ("since_ms", "beginning", "unswept"),
    [
        (2_500, None, 0),
        (2_500, BEGINNING, 3),  # what it began with: a retry
        (2_001, BEGINNING, 0),  # no snapshot lies between
        (3_000, BEGINNING, 1),
        (9_999, BEGINNING, 0),
    ],
)
def test_what_leaves_nothing_out_is_no_bound(
    table: Table, since_ms: int, beginning: Beginning | None, unswept: int, caplog: pytest.LogCaptureFixture
) -> None:
    """`unswept`: how many of the snapshots of 3, 4 and 5 s."""
    with_snapshots(table, *({} for _ in range(5)))
    snapshots = table.metadata.snapshots[2 : 2 + unswept]
    with caplog.at_level(logging.INFO):
        check_since(table, since_ms, beginning, snapshots)
    assert (since_ms == 2_500 and beginning is not None) != ("leaves nothing out" in caplog.text)


@pytest.mark.parametrize("beginning", [None, BEGINNING])
def test_leaving_out_more_is_refused(table: Table, beginning: Beginning | None) -> None:
    with_snapshots(table, *({} for _ in range(5)))
    with pytest.raises(ConfigError, match=r"since .*:04Z: dedup has swept .* 1 snapshots of .*of .*:03Z, .*drop"):
        check_since(table, 4_000, beginning, table.metadata.snapshots[2:])


def test_taking_in_what_was_left_out_is_refused(table: Table) -> None:
    with pytest.raises(ConfigError, match=r"planned the first sweep, and left out .*\(1,234 rows\), for good"):
        check_since(table, 2_000, BEGINNING, [], planned=True)
