"""A topic that really loses messages: the alert comes before the broker deletes the first one that is not archived."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from alert_servers import AlertServers
from archived_stream import ArchivedStream
from confluent_kafka import Consumer
from test_watch import CHANNELS, servers

from devstack import Stack
from waybill.archive.ingest import plan_lanes, run_lane
from waybill.watch.promises.watch_run import WatchReport, run_watch

__all__ = ["servers"]  # the fixture

pytestmark = [pytest.mark.integration, pytest.mark.drill, pytest.mark.timeout(600)]

RETENTION_SECONDS = 150
RATE = 100
"""Messages of 1 KiB each second. Ingest fetches half of that, so the message that is `RETENTION_SECONDS` old and not
archived yet was produced as many seconds after the start."""
LEAD_SECONDS = 120
"""The alert comes at least so long before the first loss."""
LONGEST_SECONDS = 420


@contextmanager
def repeated(work: Callable[[], None], pause_seconds: float = 0.0) -> Iterator[None]:
    """Call `work` in a thread, again and again, until the block ends."""
    ended, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not ended.wait(pause_seconds):
                work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=60)
    assert errors == []


def test_alert_comes_two_minutes_before_kafka_deletes_what_is_not_archived(
    stack: Stack, tmp_path: Path, topic_name: str, servers: AlertServers
) -> None:
    settings = {"retention.ms": str(RETENTION_SECONDS * 1000), "segment.ms": "5000"}
    stream = ArchivedStream(tmp_path, topic_name, partitions=1, topic_config=settings)
    limits = f"{{budget: 20s, rate_limit: {RATE // 2}KiB}}"
    text = stream.file.read_text().replace("ingest: {lanes: 2}", f"ingest: {limits}").replace("1MiB", "256KiB")
    promises = "    promises: {archive_lag: off, table_lag: off, retention_runway: 3m}\n"
    stream.file.write_text(text.replace("streams:\n", f"{CHANNELS}streams:\n", 1) + promises)
    config, producer = stream.config, stream.producer(**{"compression.type": "none"})
    failures: list[str] = []

    def produce() -> None:
        for _ in range(RATE // 10):
            value = {"id": os.urandom(8).hex(), "time": "2026-01-01T00:00:00Z", "text": os.urandom(480).hex()}
            producer.produce(stream.topic, json.dumps(value).encode(), b"", 0)
        producer.flush(30)

    def ingest() -> None:
        for lane in plan_lanes(config, stream.name):
            failures.extend(str(failure) for failure in run_lane(config, lane).failures)

    def watch() -> WatchReport:
        return run_watch(config, directory=tmp_path)

    watcher = Consumer({"bootstrap.servers": stream.servers, "group.id": topic_name})
    began = time.monotonic()
    alert_at = loss_at = None
    with stream.coordinator() as coordinator, repeated(produce, 0.1), repeated(ingest, 1.0):
        while loss_at is None:
            assert time.monotonic() - began < LONGEST_SECONDS, (alert_at, failures)
            report = watch()
            if alert_at is None and servers.mails:
                alert_at = time.monotonic()
                assert [each.promise for each in report.broken] == ["retention_runway"]
            committed = coordinator.read_committed(stream.tp())
            first, _ = watcher.get_watermark_offsets(_of_consumer(stream), timeout=30)
            if committed is not None and first > committed.committed_offset:
                loss_at = time.monotonic()
            time.sleep(5)
    watcher.close()
    assert alert_at is not None, "nobody was told"
    assert loss_at - alert_at >= LEAD_SECONDS, (alert_at - began, loss_at - began)
    print(f"told {alert_at - began:.0f} s after the start, first loss {loss_at - began:.0f} s after it")
    subjects = [str(mail["Subject"]) for mail in servers.mails]
    assert subjects[0].startswith("[critical] events: retention runway")
    assert sum("retention runway" in subject for subject in subjects) == 1, subjects

    ingest()
    assert any("RetentionGap" in failure or "retention" in failure for failure in failures), failures
    assert "retention_runway" in [each.promise for each in watch().broken]
    accepted = stream.waybill("gaps", "accept", stream.topic, "0", "--reason", "test", "--by", "ann")
    assert accepted.code == 0, accepted.err


def _of_consumer(stream: ArchivedStream) -> object:
    from confluent_kafka import TopicPartition

    return TopicPartition(stream.topic, 0)
