"""The built-in checks judge counts and file statistics: what passes, what fails, and what gets no verdict."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from audited_table import NOON, TP, AuditedTable, catalog_in, epoch_ms, stream_of
from hypothesis import given
from hypothesis import strategies as st

from waybill.config.models.quality import CheckName
from waybill.config.names import TopicPartition
from waybill.tables.audit import AuditInput, CheckResult, Severity
from waybill.tables.audit.built_in import built_in_results
from waybill.tables.audit.counts import AuditCounts
from waybill.tables.audit.volume import completed_units, earlier_units

HOUR = timedelta(hours=1)
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@pytest.fixture
def table(tmp_path: Path) -> AuditedTable:
    return AuditedTable(catalog_in(tmp_path))


def result(given_input: AuditInput, name: CheckName) -> CheckResult | None:
    found = [each for each in built_in_results(given_input) if each.check == name]
    assert len(found) <= 1
    return found[0] if found else None


def verdict(given_input: AuditInput, name: CheckName) -> bool | None:
    found = result(given_input, name)
    return None if found is None else found.success


# --- what tasks counted -----------------------------------------------------------------------------------------------


def test_each_message_must_be_in_one_row(table: AuditedTable) -> None:
    files = table.stage([{}] * 5)
    assert verdict(table.given(files, AuditCounts(messages=5)), CheckName.ROWS_MATCH_MESSAGES) is True
    lost = result(table.given(files, AuditCounts(messages=7)), CheckName.ROWS_MATCH_MESSAGES)
    assert lost == CheckResult(
        "rows_match_messages", {}, Severity.WARNING, False, "7 messages, 5 rows, 0 in quarantine", 2
    )


def test_without_counts_of_tasks_there_is_no_verdict_about_messages(table: AuditedTable) -> None:
    found = built_in_results(table.given(table.stage([{}])))
    assert [each.check for each in found] == []


def test_repeated_offsets_fail_with_the_place(table: AuditedTable) -> None:
    counts = AuditCounts(messages=1, repeated_offsets=2, repeated_example="flights/0@17")
    found = result(table.given((), counts), CheckName.OFFSETS_UNIQUE)
    assert found is not None
    assert (found.success, found.unexpected_count, found.examples) == (False, 2, ("flights/0@17",))


@pytest.mark.parametrize(("missing", "passes"), [(0, True), (10, True), (11, False)])
def test_a_share_may_be_as_large_as_configured(table: AuditedTable, missing: int, passes: bool) -> None:
    counts = AuditCounts(messages=1000, without_event_time=missing)
    assert verdict(table.given((), counts), CheckName.EVENT_TIME_NULL_SHARE) is passes


def test_a_share_of_few_messages_gets_no_verdict(table: AuditedTable) -> None:
    counts = AuditCounts(messages=99, without_event_time=99)
    assert verdict(table.given((), counts), CheckName.EVENT_TIME_NULL_SHARE) is None


def test_assigned_ids_count_only_if_the_parser_reads_ids(table: AuditedTable) -> None:
    files = table.stage([{}] * 100)
    counts = AuditCounts(messages=100, assigned_ids=50)
    assert verdict(table.given(files, counts), CheckName.MESSAGE_ID_NULL_SHARE) is False
    without_ids = stream_of(parser={"name": "json", "event_time": {"field": "time"}})
    assert verdict(table.given(files, counts, stream=without_ids), CheckName.MESSAGE_ID_NULL_SHARE) is None


def test_times_later_than_the_plan_fail(table: AuditedTable) -> None:
    counts = AuditCounts(messages=100, event_times_ahead=2, ahead_seconds=7200)
    found = result(table.given((), counts), CheckName.CLOCK_SKEW)
    assert found is not None
    assert not found.success
    assert found.observed == (
        "2.00% (2 of 100): 2 event times and 0 Kafka timestamps are more than 5 minutes later than the run was "
        "planned, by up to 7,200 s"
    )


def test_severity_and_limits_come_from_the_config(table: AuditedTable) -> None:
    counts = AuditCounts(messages=100, without_event_time=30, event_times_ahead=100)
    checks = {
        "event_time_null_share": {"severity": "critical", "max_share": "20%"},
        "clock_skew": "off",
        "rows_match_messages": "off",
    }
    found = {r.check: r for r in built_in_results(table.given((), counts, stream=stream_of({"checks": checks})))}
    assert found["event_time_null_share"].severity is Severity.CRITICAL
    assert found["event_time_null_share"].arguments == {"max_share": "20%"}
    assert not {"clock_skew", "rows_match_messages"} & found.keys()


def test_the_share_of_the_quarantine_has_the_limit_of_the_quarantine_alert(tmp_path: Path) -> None:
    table = AuditedTable(catalog_in(tmp_path), stream_of(quarantine={"max_rate": "10%", "min_messages": 10}))
    good, bad = table.stage([{}] * 8), table.stage([{}] * 2)
    assert verdict(table.given(good, quarantine=bad), CheckName.QUARANTINE_SHARE) is False
    assert verdict(table.given(good, quarantine=()), CheckName.QUARANTINE_SHARE) is None  # only 8 messages
    own = stream_of({"checks": {"quarantine_share": {"max_share": "20%"}}}, quarantine={"min_messages": 10})
    assert verdict(table.given(good, quarantine=bad, stream=own), CheckName.QUARANTINE_SHARE) is True


# --- counts of tasks --------------------------------------------------------------------------------------------------

RANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=8)


@given(RANGES)
def test_ranges_of_tasks_overlap_if_and_only_if_an_offset_is_in_two_of_them(found: list[tuple[int, int]]) -> None:
    ranges = [(first, first + length) for first, length in found]
    together = AuditCounts.sum(AuditCounts(ranges={TP: (each,)}) for each in ranges)
    offsets = [offset for first, last in ranges for offset in range(first, last + 1)]
    assert (together.repeated_offsets > 0) == (len(offsets) != len(set(offsets)))


@given(RANGES, RANGES)
def test_ranges_of_other_topic_partitions_never_overlap(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    def counts(tp: TopicPartition, found: Sequence[tuple[int, int]]) -> list[AuditCounts]:
        return [AuditCounts(ranges={tp: ((first, first + length),)}) for first, length in found]

    other = TopicPartition("flights", 1)
    apart = [AuditCounts.sum(counts(TP, a)), AuditCounts.sum(counts(other, b))]
    together = AuditCounts.sum([*counts(TP, a), *counts(other, b)])
    assert together.repeated_offsets == sum(each.repeated_offsets for each in apart)


@given(st.builds(AuditCounts, *[st.integers(0, 10**12)] * 7, st.sampled_from(["", "flights/0@5"])))
def test_counts_survive_the_snapshot_property(counts: AuditCounts) -> None:
    assert AuditCounts.from_text(counts.to_text()) == counts


def test_counts_of_a_newer_version_are_left_alone() -> None:
    assert AuditCounts.from_text('{"v": 2}') is None


# --- volume -----------------------------------------------------------------------------------------------------------


def fill_days(table: AuditedTable, days: int, rows: int) -> None:
    """Add `rows` rows to the hour before noon of each of the days before, and one row to the day before those."""
    table.commit([{"event_time": NOON - timedelta(days=days + 1)}])
    for day in range(days, 0, -1):
        table.commit([{"event_time": NOON - timedelta(days=day) - HOUR / 2}] * rows, watermark=NOON - HOUR)


VOLUME = {"checks": {"volume": {"min_rows": 10}}}


@pytest.mark.parametrize(("rows", "passes"), [(40, True), (20, True), (120, True), (19, False), (121, False)])
def test_the_rows_of_a_completed_hour_are_compared_with_earlier_days(tmp_path: Path, rows: int, passes: bool) -> None:
    table = AuditedTable(catalog_in(tmp_path), stream_of(VOLUME))
    fill_days(table, 4, 40)
    files = table.stage([{"event_time": NOON - HOUR / 2}] * rows)
    found = result(table.given(files, watermark=NOON), CheckName.VOLUME)
    assert found is not None
    assert found.success is passes
    assert f"2026-03-02T11:00Z: {rows:,} rows, usually 40 (median of 4 days)" in str(found.observed)


def test_a_table_by_day_is_judged_by_days(tmp_path: Path) -> None:
    table = AuditedTable(catalog_in(tmp_path), stream_of(VOLUME, partition_by="day"))
    midnight = NOON - 12 * HOUR
    table.commit([{"event_time": midnight - timedelta(days=6)}])
    for day in range(5, 1, -1):
        table.commit([{"event_time": midnight - timedelta(days=day)}] * 40, watermark=midnight - HOUR)
    files = table.stage([{"event_time": midnight - HOUR}] * 10)
    found = result(table.given(files, watermark=midnight), CheckName.VOLUME)
    assert found is not None
    assert not found.success
    assert "2026-03-01T00:00Z: 10 rows, usually 40 (median of 4 days)" in str(found.observed)


def test_rows_of_an_hour_that_are_in_the_table_already_count_too(tmp_path: Path) -> None:
    table = AuditedTable(catalog_in(tmp_path), stream_of(VOLUME))
    fill_days(table, 4, 40)
    table.commit([{"event_time": NOON - HOUR / 2}] * 30, watermark=NOON - HOUR)
    files = table.stage([{"event_time": NOON - HOUR / 2}])
    assert verdict(table.given(files, watermark=NOON), CheckName.VOLUME) is True


def test_a_generation_that_is_not_live_is_compared_with_its_own_history(tmp_path: Path) -> None:
    table = AuditedTable(catalog_in(tmp_path), stream_of(VOLUME))
    fill_days(table, 4, 40)
    table.stream, table.branch = stream_of(VOLUME, generation=2), "generation_2"
    fill_days(table, 4, 400)
    files = table.stage([{"event_time": NOON - HOUR / 2}] * 400)
    found = result(table.given(files, watermark=NOON), CheckName.VOLUME)
    assert found is not None
    assert found.success
    assert "400 rows, usually 400 (median of 4 days)" in str(found.observed)


def test_volume_gets_no_verdict_without_history_or_before_the_hour_is_complete(tmp_path: Path) -> None:
    table = AuditedTable(catalog_in(tmp_path), stream_of(VOLUME))
    fill_days(table, 2, 40)
    files = table.stage([{"event_time": NOON - HOUR / 2}])
    assert verdict(table.given(files, watermark=NOON), CheckName.VOLUME) is None  # two days are too few
    fill_days(table, 4, 40)
    assert verdict(table.given(files, watermark=NOON - timedelta(seconds=1)), CheckName.VOLUME) is None
    assert verdict(table.given(files), CheckName.VOLUME) is None


def test_the_first_run_of_a_table_completes_nothing(table: AuditedTable) -> None:
    files = table.stage([{}] * 200)
    assert verdict(table.given(files, watermark=NOON), CheckName.VOLUME) is None


WATERMARKS = st.dictionaries(st.integers(0, 3), st.integers(0, 100 * HOUR_MS), max_size=4)


@given(WATERMARKS, WATERMARKS)
def test_completed_hours_lie_between_the_watermarks(before: dict[int, int], run: dict[int, int]) -> None:
    units = completed_units(before, run, HOUR_MS)
    assert len(units) <= 24
    assert units == sorted(set(units))
    for unit in units:
        end = (unit + 1) * HOUR_MS
        assert all(max(at, before.get(tp, at)) >= end for tp, at in run.items())
        assert any(before[tp] < end for tp in run if tp in before)


@given(st.integers(0, 10**6))
def test_earlier_hours_are_the_same_hour_of_the_day(unit: int) -> None:
    assert {(unit - earlier) % 24 for earlier in earlier_units(unit, 24)} == {0}
    assert len(set(earlier_units(unit, 24))) == 10


# --- a column that became null ----------------------------------------------------------------------------------------

NULLS: dict[str, Any] = {"checks": {"column_became_null": {"min_rows": 50}}}


def test_a_column_without_any_value_fails_if_earlier_rows_had_values(tmp_path: Path) -> None:
    table = AuditedTable(catalog_in(tmp_path), stream_of(NULLS))
    table.commit([{"delay": n, "fee": Decimal(1), "tags": ["a"]} for n in range(100)])
    found = result(table.given(table.stage([{"fee": Decimal(1)}] * 100)), CheckName.COLUMN_BECAME_NULL)
    assert found is not None
    assert not found.success
    assert found.observed == "delay, tags"
    assert found.examples[0] == "delay: null in all 100 rows; 100.0% of earlier rows have a value"


def test_a_column_that_never_had_values_passes(tmp_path: Path) -> None:
    table = AuditedTable(catalog_in(tmp_path), stream_of(NULLS))
    table.commit([{}] * 100)
    assert verdict(table.given(table.stage([{}] * 100)), CheckName.COLUMN_BECAME_NULL) is True


def test_a_column_that_rarely_has_values_may_have_none(tmp_path: Path) -> None:
    table = AuditedTable(catalog_in(tmp_path), stream_of(NULLS))
    table.commit([{"delay": 5 if n < 10 else None} for n in range(100)])
    assert verdict(table.given(table.stage([{}] * 100)), CheckName.COLUMN_BECAME_NULL) is True
    assert verdict(table.given(table.stage([{}] * 300)), CheckName.COLUMN_BECAME_NULL) is False


def test_a_run_with_few_rows_gets_no_verdict_about_nulls(tmp_path: Path) -> None:
    table = AuditedTable(catalog_in(tmp_path), stream_of(NULLS))
    table.commit([{"delay": 1}] * 100)
    assert verdict(table.given(table.stage([{}] * 49)), CheckName.COLUMN_BECAME_NULL) is None


def test_one_value_is_enough(tmp_path: Path) -> None:
    table = AuditedTable(catalog_in(tmp_path), stream_of(NULLS))
    table.commit([{"delay": 1}] * 100)
    files = table.stage([{"delay": 7}, *[{}] * 99])
    assert verdict(table.given(files), CheckName.COLUMN_BECAME_NULL) is True


def test_watermarks_of_the_helper_are_epoch_ms() -> None:
    assert epoch_ms(NOON) % HOUR_MS == 0
    assert epoch_ms(NOON) // DAY_MS == (NOON.date() - NOON.date().replace(year=1970, month=1, day=1)).days


# --- messages at which a parser raised --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failed", "messages", "passes"),
    [(0, 10, True), (1, 10, True), (5, 10, True), (6, 10, False), (10, 10, False), (9, 9, None), (1, 1, None)],
)
def test_a_run_fails_if_the_parser_raised_at_most_messages(
    table: AuditedTable, failed: int, messages: int, passes: bool | None
) -> None:
    found = result(table.given((), AuditCounts(messages=messages, parser_failed=failed)), CheckName.PARSER_FAILED)
    assert (None if found is None else found.success) is passes
    if passes is False and found is not None:
        assert (found.severity, found.unexpected_count) == (Severity.CRITICAL, failed)


def test_counts_of_an_earlier_version_have_no_failed_parser() -> None:
    text = AuditCounts(messages=3, parser_failed=2).to_text()
    assert AuditCounts.from_text(text) == AuditCounts(messages=3, parser_failed=2)
    older = text.replace(',"parser_failed":2', "")
    assert older != text
    assert AuditCounts.from_text(older) == AuditCounts(messages=3)
