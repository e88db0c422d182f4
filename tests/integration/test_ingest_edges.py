"""What Kafka does to a log while a lane reads it: retention, a truncation, a topic that is made anew."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from archive_drill import Archive, Cluster

from devstack import Stack
from waybill.errors import LogTruncated
from waybill.ingest import Outcome, PartitionReport, Services
from waybill.names import TopicPartition
from waybill.sources.kafka import Chunk, EpochEnd, KafkaSource, LogRange

pytestmark = pytest.mark.integration

BATCH = 10
"""Messages of a batch, and of a fetch."""


def produce(cluster: Cluster, tp: TopicPartition, batches: int) -> None:
    for number in range(batches):
        cluster.produce(tp, [(None, b"%d/%d" % (number, i)) for i in range(BATCH)])


class Interrupted(KafkaSource):
    """Batch by batch, and after the first something happens. The next fetch is in flight by then."""

    happens: ClassVar[Callable[[], None]]

    def read(self, *args: Any, **kwargs: Any) -> Generator[Chunk, None, None]:
        self._fetch_bytes = 1
        for number, chunk in enumerate(super().read(*args, **kwargs)):
            yield chunk
            if not number:
                type(self).happens()


@contextmanager
def interrupted(
    archive: Archive, happens: Callable[[], None], kind: type[Interrupted] = Interrupted
) -> Iterator[Services]:
    with archive.services() as services, pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "happens", staticmethod(happens), raising=False)
        services.source.__class__ = kind
        yield services


def offsets(archive: Archive, tp: TopicPartition) -> list[int]:
    return [message.offset for message in archive.messages(tp)]


def test_retention_that_overtakes_a_lane_stops_it_with_what_it_had_fetched_archived(
    archive: Archive, cluster: Cluster, tp: TopicPartition
) -> None:
    produce(cluster, tp, 8)
    with interrupted(archive, lambda: cluster.delete_records(tp, before=65)) as services:
        report = archive.run_one(services, tp)
        (stop,) = services.coordinator.list_stops()
        assert services.source.earliest_local(tp) == 65

    assert report.outcome is Outcome.STOPPED
    assert report.failure is not None
    assert report.failure.error == stop.error == "RetentionGap"
    fetched = report.committed_offset
    assert fetched in (BATCH, 2 * BATCH), "the fetch in flight may have come before the deletion"
    assert f"offsets {fetched}–64" in report.failure.message
    assert offsets(archive, tp) == list(range(fetched))
    assert archive.ranges(tp) == [(0, fetched)]


def test_topic_that_is_made_anew_under_a_lane_stops_it_with_what_it_had_fetched_archived(
    archive: Archive, cluster: Cluster, tp: TopicPartition
) -> None:
    produce(cluster, tp, 5)

    def made_anew() -> None:
        cluster.delete(tp.topic)
        cluster.create(tp.topic)
        cluster.produce(tp, [(None, b"of another topic")] * 80)

    with interrupted(archive, made_anew) as services:
        report = archive.run_one(services, tp)

    assert report.failure is not None
    assert report.failure.error == "TopicRecreated"
    messages = archive.messages(tp)
    assert len(messages) in (BATCH, 2 * BATCH)
    assert b"of another topic" not in {message.value for message in messages}
    assert archive.run().partitions[0].failure == report.failure, "and so it stays"


class Truncated(Interrupted):
    """A broker that says, after the first batch, that the log was truncated."""

    archived_until: ClassVar[int]

    def read(self, *args: Any, **kwargs: Any) -> Generator[Chunk, None, None]:
        for chunk in super().read(*args, **kwargs):
            yield chunk
            raise LogTruncated(chunk.where.rpartition("/")[0], 0, chunk.next_offset, self.archived_until, 0)

    def epoch_end(self, _: TopicPartition, leader_epoch: int) -> EpochEnd:
        return EpochEnd(leader_epoch, self.archived_until)


def truncated_while_reading(archive: Archive, tp: TopicPartition, until: int) -> PartitionReport:
    class Until(Truncated):
        archived_until = until

    with interrupted(archive, lambda: None, Until) as services:
        return archive.run_one(services, tp)


def test_truncation_of_what_was_only_fetched_is_no_stop(archive: Archive, cluster: Cluster, tp: TopicPartition) -> None:
    produce(cluster, tp, 2)
    archive.run()
    produce(cluster, tp, 3)

    report = truncated_while_reading(archive, tp, until=2 * BATCH)

    assert report.outcome is Outcome.FAILED
    assert report.failure is not None
    assert (report.failure.error, report.failure.retriable) == ("KafkaUnavailable", True)
    assert "the log was truncated while it was read" in report.failure.message
    assert archive.ranges(tp) == [(0, 2 * BATCH)], "what may be no message any more is not archived"
    archive.run()
    assert offsets(archive, tp) == list(range(5 * BATCH))


def test_truncation_of_what_is_archived_is_a_stop(archive: Archive, cluster: Cluster, tp: TopicPartition) -> None:
    produce(cluster, tp, 2)
    archive.run()
    produce(cluster, tp, 3)

    class OnceItReads(Truncated):
        """Step 3 still sees the log as it was."""

        archived_until = 2 * BATCH

        def read(self, *args: Any, **kwargs: Any) -> Generator[Chunk, None, None]:
            type(self).archived_until = BATCH
            yield from super().read(*args, **kwargs)

    with interrupted(archive, lambda: None, OnceItReads) as services:
        report = archive.run_one(services, tp)

    assert report.outcome is Outcome.STOPPED
    assert report.failure is not None
    assert report.failure.error == "LogTruncated"
    assert archive.ranges(tp) == [(0, 2 * BATCH)]


def test_what_the_leader_has_on_its_own_disk(archive: Archive, cluster: Cluster, tp: TopicPartition) -> None:
    """Without tiered storage that is the whole log: what a fetch that comes to nothing is judged by."""
    produce(cluster, tp, 3)
    with archive.services() as services:
        assert services.source.earliest_local(tp) == 0
        cluster.delete_records(tp, before=15)
        assert services.source.earliest_local(tp) == 15
        assert services.source.offsets([tp])[tp] == LogRange(15, 30)


def test_lost_coordination_does_not_move_where_a_chain_begins(
    stack: Stack, cluster: Cluster, tp: TopicPartition
) -> None:
    """ZooKeeper's data is lost before the first object is there: `latest` would be another offset by now."""
    archive = Archive(stack, tp.topic, [tp.topic], {"start": "latest"})
    produce(cluster, tp, 1)
    archive.run()
    produce(cluster, tp, 2)
    with archive.services() as services:
        client = services.coordinator._client
        client.delete(services.coordinator._path(f"/{archive.name}"), recursive=True)

    archive.run()

    assert archive.ranges(tp) == [(BATCH, 3 * BATCH)]
    cluster.add_partitions(tp.topic, 2)
    added = TopicPartition(tp.topic, 1)
    produce(cluster, added, 1)
    with archive.services() as services:
        client = services.coordinator._client
        client.delete(services.coordinator._path(f"/{archive.name}"), recursive=True)
    archive.run()
    assert archive.ranges(added) == [(0, BATCH)], "it came after the start, and begins with its first message"
