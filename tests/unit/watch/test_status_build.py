"""What a status document makes of samples: rates, and what it takes over from the document before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from waybill.names import TopicPartition
from waybill.watch.log_figures import Logs
from waybill.watch.measure import Measured
from waybill.watch.samples import Offsets, Samples
from waybill.watch.status import StreamStatus
from waybill.watch.status_build import stream_statuses

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
            (NOW - (len(ends) - 1 - number) * MINUTE, {KEY: Offsets(0, end, end // 2)})
            for number, end in enumerate(ends)
        )
    )


def _status(samples: Samples, before: StreamStatus | None = None, *, is_away: bool = False) -> StreamStatus:
    logs = None if is_away else Logs(dict(samples.samples[-1][1]), {}, {})
    known = {} if before is None else {"flights": before}
    [status] = stream_statuses(_config(), Measured([], logs, {}, samples), known, {}, NOW)
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
