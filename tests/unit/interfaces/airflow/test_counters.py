"""Counters of tasks: a StatsD server on a real socket receives them through Airflow's own metrics."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.sdk.observability import stats

from waybill.archive.ingest.lane_report import (
    ArchivedObject,
    Failure,
    LaneReport,
    Outcome,
    StreamReport,
    TopicPartitionReport,
)
from waybill.config.names import Stage
from waybill.interfaces.airflow.counters import Counter, count_lane, count_result

LANE = LaneReport(
    lane=0,
    seconds=1.0,
    streams=(
        StreamReport(
            stream="flights",
            partitions=(
                TopicPartitionReport(
                    topic="flights",
                    partition=0,
                    outcome=Outcome.UP_TO_DATE,
                    objects=(
                        ArchivedObject(
                            key="a", first_offset=0, next_offset=10, messages=10, size_bytes=500, seconds=0.1
                        ),
                        ArchivedObject(
                            key="b",
                            first_offset=10,
                            next_offset=12,
                            messages=2,
                            size_bytes=90,
                            seconds=0.0,
                            adopted=True,
                        ),
                    ),
                ),
                TopicPartitionReport(
                    topic="flights",
                    partition=1,
                    outcome=Outcome.STOPPED,
                    failure=Failure(error="RetentionGap", message="gone", retriable=False),
                ),
            ),
        ),
    ),
)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A StatsD server, to which Airflow's metrics are switched on with tags in Datadog's or Influx's way."""
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as received:
        received.bind(("127.0.0.1", 0))
        received.settimeout(2)
        _, port = received.getsockname()

        settings = {"ON": "True", "HOST": "127.0.0.1", "PORT": str(port), "INFLUXDB_ENABLED": "True"}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in settings.items():
                patch.setenv(f"AIRFLOW__METRICS__STATSD_{name}", value)
            logger = get_stats_factory()()
            stats.initialize(factory=lambda: logger, export_legacy_names=False)
            yield received
            logger.statsd.close()
        stats.initialize(factory=get_stats_factory(), export_legacy_names=False)


def lines(server: socket.socket, number: int) -> set[str]:
    """Return the lines of so many datagrams; no more may follow."""
    found = {server.recv(4096).decode() for _ in range(number)}
    server.settimeout(0.05)
    with pytest.raises(TimeoutError):
        server.recv(4096)
    return found


def test_a_lane_counts_what_it_archived_and_left(server: socket.socket) -> None:
    count_lane(LANE)
    assert lines(server, 6) == {
        "airflow.waybill.ingest.messages,stream=flights:10|c",
        "airflow.waybill.ingest.bytes,stream=flights:500|c",
        "airflow.waybill.ingest.objects,stream=flights:1|c",
        "airflow.waybill.ingest.commits,stream=flights:2|c",
        "airflow.waybill.ingest.adoptions,stream=flights:1|c",
        "airflow.waybill.ingest.refusals,stream=flights:1|c",
    }


def test_results_of_spark_jobs_are_counted_without_zeros_and_unknown_names(server: socket.socket) -> None:
    count_result(Stage.PARTITION, "flights", {"rows": 100, "quarantined": 0, "of_a_newer_version": 5})
    count_result(Stage.DEDUP, "flights", {"rows": 100, "duplicates": 3})
    assert lines(server, 3) == {
        "airflow.waybill.partition.rows,stream=flights:100|c",
        "airflow.waybill.dedup.rows,stream=flights:100|c",
        "airflow.waybill.dedup.duplicates,stream=flights:3|c",
    }


def test_nothing_is_sent_while_airflows_metrics_are_off() -> None:
    count_lane(LANE)


def test_every_counter_is_documented() -> None:
    page = (Path(__file__).parents[4] / "docs" / "monitoring" / "README.md").read_text()
    assert [counter for counter in Counter if f"`{counter}`" not in page] == []
