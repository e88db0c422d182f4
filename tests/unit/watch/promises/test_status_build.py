"""What a status document makes of samples: rates, and what it takes over from the document before."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from waybill.config.models.promises import PromiseSeverity
from waybill.config.names import TopicPartition
from waybill.watch.incidents.finding import Finding, Verdict
from waybill.watch.promises.log_figures import Logs
from waybill.watch.promises.measure import Measured
from waybill.watch.promises.samples import OffsetSample, Samples
from waybill.watch.promises.status import (
    BackfillStatus,
    QuarantineStatus,
    StreamDetails,
    StreamStatus,
    TopicPartitionStatus,
    UnreadPart,
)
from waybill.watch.promises.status_build import stream_statuses
from waybill.watch.promises.status_parts import kept_details

MINUTE = 60_000
NOW = 1_000 * MINUTE
KEY = ("flights", TopicPartition("flights", 0))


def _config() -> Any:
    stream = SimpleNamespace(table="a.flights", generation=1, is_kinesis=False, section=lambda _: None)
    return SimpleNamespace(streams={"flights": stream}, stream=lambda _: stream)


def _samples(*ends: int) -> Samples:
    """Return samples of each minute up to now; what is archived is half of the log."""
    return Samples(
        tuple(
            (NOW - (len(ends) - 1 - number) * MINUTE, {KEY: OffsetSample(0, end, end // 2)})
            for number, end in enumerate(ends)
        )
    )


def _status(
    samples: Samples,
    before: StreamStatus | None = None,
    *,
    is_away: bool = False,
    findings: tuple[Finding, ...] = (),
) -> StreamStatus:
    logs = None if is_away else Logs(dict(samples.samples[-1][1]), {}, {})
    known = {} if before is None else {"flights": before}
    [status] = stream_statuses(_config(), Measured(findings, logs, {}, samples), known, {}, NOW - MINUTE, NOW)
    return status


def test_rates_are_those_of_the_last_ten_minutes() -> None:
    # An hour of 6,000 messages a minute, then ten minutes of 600.
    ends = [*range(0, 360_001, 6_000), *range(360_600, 366_001, 600)]
    status = _status(_samples(*ends))
    assert status.produced_per_second == pytest.approx(10.0)
    assert status.archived_per_second == pytest.approx(5.0)


def test_with_one_sample_no_rate_is_known() -> None:
    assert _status(_samples(100)).produced_per_second is None


def test_a_topic_that_was_created_again_has_no_negative_rate() -> None:
    assert _status(_samples(1_000_000, 10)).produced_per_second == 0.0


def test_while_kafka_is_away_offsets_keep_the_time_at_which_they_were_read() -> None:
    before = _status(_samples(100, 200))
    away = _status(_samples(100, 200), before, is_away=True)
    assert away.topic_partitions == before.topic_partitions
    assert away.logs_ms == NOW
    assert away.produced_per_second == before.produced_per_second


def test_a_trend_keeps_two_hours() -> None:
    status = _status(_samples(100))
    for _ in range(200):
        status = _status(_samples(100), status)
    assert len(status.trend) == 120


def _lag(verdict: Verdict, figure: str) -> Finding:
    return Finding("flights", "archive_lag", verdict, PromiseSeverity.WARNING, figure, value=240.0 if figure else None)


def test_a_promise_that_cannot_be_measured_keeps_its_last_figure_with_the_time_of_the_measurement() -> None:
    before = _status(_samples(100, 200), findings=(_lag(Verdict.BROKEN, "4 min"),))
    away = _status(_samples(100, 200), before, is_away=True, findings=(_lag(Verdict.UNKNOWN, ""),))
    again = _status(_samples(100, 200), away, is_away=True, findings=(_lag(Verdict.UNKNOWN, ""),))
    for status in (away, again):
        [lag] = status.promises
        assert (lag.verdict, lag.figure, lag.measured_ms, lag.known_verdict) == (
            Verdict.UNKNOWN,
            "4 min",
            NOW - MINUTE,
            Verdict.BROKEN,
        )
    assert away.trend[-1].archive_lag_seconds is None, "it was not measured now"
    [lag] = _status(_samples(100, 200), again, findings=(_lag(Verdict.KEPT, "0 s"),)).promises
    assert (lag.verdict, lag.figure, lag.measured_ms) == (Verdict.KEPT, "0 s", None)


def test_while_the_tables_cannot_be_read_published_offsets_stay() -> None:
    before = _status(_samples(100, 200))
    tp = TopicPartitionStatus("flights", 0, 0, 200, 100, 0, published=90)
    [now] = _status(_samples(100, 200), replace(before, topic_partitions=(tp,))).topic_partitions
    assert now.published == 90


def test_a_part_that_cannot_be_read_keeps_its_last_state_with_its_age_and_the_reason() -> None:
    group = QuarantineStatus("not_json", "json", "flights", 12, 0, 1, 1, 2)
    before = StreamDetails(NOW - 9 * MINUTE, quarantine=(group,), quarantine_snapshot=7)
    backfill = BackfillStatus("a", "built", "range", "1 of 1", 10, "ada", "why", NOW)
    for age in (5, 0):  # twice in a row: the age is that of the last success
        before = kept_details(
            NOW - age * MINUTE, {"backfills": (backfill,)}, {"quarantine": "no answer", "gaps": "x"}, before
        )
        assert before.quarantine == (group,)
        assert before.quarantine_snapshot == 7
        assert before.backfills == (backfill,)
        assert before.unread == {
            "quarantine": UnreadPart("no answer", NOW - 9 * MINUTE),
            "gaps": UnreadPart("x", NOW - 9 * MINUTE),
        }


def test_a_part_that_was_never_read_is_unknown_and_not_empty() -> None:
    found = kept_details(NOW, {}, {"quarantine": "612,000 rows are too many to count here"}, None)
    assert found.quarantine == ()
    assert found.unread["quarantine"].read_ms is None
