"""Changes of the log while a lane reads it: retention, truncation, a recreated topic."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from ingest_scenes import Archive, Cluster

from devstack import Stack
from waybill.archive.ingest import IngestServices, Outcome, TopicPartitionReport
from waybill.archive.ingest.kafka.topic_source import TopicSource
from waybill.base.errors import LogTruncated
from waybill.config.names import TopicPartition
from waybill.services.kafka.kafka import EpochEnd, LogRange
from waybill.services.kafka.partition_reader import Chunk

pytestmark = pytest.mark.integration

BATCH = 10
"""The number of messages in a batch, and in a fetch."""


def produce(cluster: Cluster, tp: TopicPartition, batches: int) -> None:
    for number in range(batches):
        cluster.produce(tp, [(None, b"%d/%d" % (number, i)) for i in range(BATCH)])


class InterruptedSource(TopicSource):
    """Reads batch by batch, and calls `interrupt` after the first. The next fetch is in flight by then."""

    interrupt: ClassVar[Callable[[], None]]

    def read(self, *args: Any, **kwargs: Any) -> Generator[Chunk, None, None]:
        self._fetch_bytes = 1
        for number, chunk in enumerate(super().read(*args, **kwargs)):
            yield chunk
            if not number:
                type(self).interrupt()


@contextmanager
def interrupted(
    archive: Archive, interrupt: Callable[[], None], source: type[InterruptedSource] = InterruptedSource
) -> Iterator[IngestServices]:
    with archive.services() as services, pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "interrupt", staticmethod(interrupt), raising=False)
        services.source.__class__ = source
        yield services


def offsets(archive: Archive, tp: TopicPartition) -> list[int]:
    return [message.offset for message in archive.messages(tp)]


def test_lane_archives_what_it_fetched_when_retention_overtakes_it(
    archive: Archive, cluster: Cluster, tp: TopicPartition
) -> None:
    produce(cluster, tp, 8)
    with interrupted(archive, lambda: cluster.delete_records(tp, before=65)) as services:
        report = archive.run_one(services, tp)
        (stop,) = services.coordinator.list_stops()
        assert services.kafka.earliest_local(tp) == 65

    assert report.outcome is Outcome.STOPPED
    assert report.failure is not None
    assert report.failure.error == stop.error == "RetentionGap"
    fetched = report.committed_offset
    # The producer may split a batch, and the fetch in flight may have come before the deletion.
    assert 0 < fetched <= 2 * BATCH
    assert f"offsets {fetched}–64" in report.failure.message
    assert offsets(archive, tp) == list(range(fetched))
    assert archive.ranges(tp) == [(0, fetched)]


def test_lane_archives_what_it_fetched_when_the_topic_is_recreated(
    archive: Archive, cluster: Cluster, tp: TopicPartition
) -> None:
    produce(cluster, tp, 5)

    def recreate() -> None:
        cluster.delete(tp.topic)
        cluster.create(tp.topic)
        cluster.produce(tp, [(None, b"of another topic")] * 80)

    with interrupted(archive, recreate) as services:
        report = archive.run_one(services, tp)

    assert report.failure is not None
    assert report.failure.error == "TopicRecreated"
    messages = archive.messages(tp)
    assert len(messages) in (BATCH, 2 * BATCH)
    assert b"of another topic" not in {message.value for message in messages}
    assert archive.run().partitions[0].failure == report.failure, "the next run stops for the same reason"


class TruncatedSource(InterruptedSource):
    """Reports after the first batch that the log was truncated."""

    archived_until: ClassVar[int]

    def read(self, *args: Any, **kwargs: Any) -> Generator[Chunk, None, None]:
        for chunk in super().read(*args, **kwargs):
            yield chunk
            raise LogTruncated(chunk.where.rpartition("/")[0], 0, chunk.next_offset, self.archived_until, 0)

    def epoch_end(self, _: TopicPartition, leader_epoch: int) -> EpochEnd:
        return EpochEnd(leader_epoch, self.archived_until)


def run_with_truncation(archive: Archive, tp: TopicPartition, until: int) -> TopicPartitionReport:
    class Until(TruncatedSource):
        archived_until = until

    with interrupted(archive, lambda: None, Until) as services:
        return archive.run_one(services, tp)


def test_truncation_of_fetched_messages_that_are_not_archived_is_retriable(
    archive: Archive, cluster: Cluster, tp: TopicPartition
) -> None:
    produce(cluster, tp, 2)
    archive.run()
    produce(cluster, tp, 3)

    report = run_with_truncation(archive, tp, until=2 * BATCH)

    assert report.outcome is Outcome.FAILED
    assert report.failure is not None
    assert (report.failure.error, report.failure.retriable) == ("KafkaUnavailable", True)
    assert "the log was truncated while it was read" in report.failure.message
    assert archive.ranges(tp) == [(0, 2 * BATCH)], "fetched messages that may be truncated are not archived"
    archive.run()
    assert offsets(archive, tp) == list(range(5 * BATCH))


def test_truncation_of_archived_messages_is_a_stop(archive: Archive, cluster: Cluster, tp: TopicPartition) -> None:
    produce(cluster, tp, 2)
    archive.run()
    produce(cluster, tp, 3)

    class TruncatedWhileReading(TruncatedSource):
        """Step 3 of the protocol still sees the log before the truncation."""

        archived_until = 2 * BATCH

        def read(self, *args: Any, **kwargs: Any) -> Generator[Chunk, None, None]:
            type(self).archived_until = BATCH
            yield from super().read(*args, **kwargs)

    with interrupted(archive, lambda: None, TruncatedWhileReading) as services:
        report = archive.run_one(services, tp)

    assert report.outcome is Outcome.STOPPED
    assert report.failure is not None
    assert report.failure.error == "LogTruncated"
    assert archive.ranges(tp) == [(0, 2 * BATCH)]


def test_earliest_local_offset_is_the_start_of_the_log_without_tiered_storage(
    archive: Archive, cluster: Cluster, tp: TopicPartition
) -> None:
    produce(cluster, tp, 3)
    with archive.services() as services:
        assert services.kafka.earliest_local(tp) == 0
        cluster.delete_records(tp, before=15)
        assert services.kafka.earliest_local(tp) == 15
        assert services.source.offsets([tp])[tp] == LogRange(15, 30)


def test_chain_start_stays_when_zookeeper_loses_its_data(stack: Stack, cluster: Cluster, tp: TopicPartition) -> None:
    """The data is lost before the first object exists, when `latest` stands for another offset."""
    archive = Archive(stack, tp.topic, [tp.topic], {"start": "latest"})
    produce(cluster, tp, 1)
    archive.run()
    produce(cluster, tp, 2)
    with archive.services() as services:
        client = services.coordinator.session.client
        client.delete(services.coordinator.session.full_path(f"/{archive.name}"), recursive=True)

    archive.run()

    assert archive.ranges(tp) == [(BATCH, 3 * BATCH)]
    cluster.add_partitions(tp.topic, 2)
    added = TopicPartition(tp.topic, 1)
    produce(cluster, added, 1)
    with archive.services() as services:
        client = services.coordinator.session.client
        client.delete(services.coordinator.session.full_path(f"/{archive.name}"), recursive=True)
    archive.run()
    assert archive.ranges(added) == [(0, BATCH)], "an added partition starts with its first message"
