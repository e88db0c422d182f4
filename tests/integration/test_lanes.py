"""Lanes on the real stack: limits of topics, budgets, rate limits, a backlog of many budgets, orphaned uploads."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta

import pytest
from ingest_scenes import STREAM, Archive, Cluster

from devstack import Stack
from waybill.archive import ingest
from waybill.archive.ingest import Clock, Outcome
from waybill.archive.ingest.orphaned_uploads import abort_orphaned_uploads
from waybill.config.names import BackupName, TopicPartition
from waybill.interfaces.cli import run as waybill
from waybill.services.store import Store

pytestmark = pytest.mark.integration

KIB = 1 << 10


class SimulatedTime:
    """A clock that only sleeping advances. With a rate limit, the time follows from the fetched bytes."""

    def __init__(self) -> None:
        self.now = time.time()
        self.clock = Clock(wall=lambda: self.now, monotonic=lambda: self.now, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


def noise(size_bytes: int) -> list[tuple[None, bytes]]:
    """Return messages of 8 KiB that cannot be compressed."""
    return [(None, os.urandom(8 * KIB)) for _ in range(size_bytes // (8 * KIB))]


def test_limits_of_a_topic_override_those_of_the_stream(stack: Stack, cluster: Cluster, topic_name: str) -> None:
    young, large, other = (TopicPartition(f"{topic_name}-{kind}", 0) for kind in ("young", "large", "other"))
    upload = {
        "max_age": "1h",
        "max_bytes": "64KiB",
        "topics": {young.topic: {"max_age": "0s"}, large.topic: {"max_bytes": "300KiB"}},
    }
    archive = Archive(stack, topic_name, [young.topic, large.topic, other.topic], {"upload": upload})
    for tp in (young, large, other):
        cluster.create(tp.topic)
        cluster.produce(tp, noise(200 * KIB), batch_num_messages=1)

    reports = {report.tp: report for report in archive.run().partitions}

    assert (reports[young].outcome, len(reports[young].objects), reports[young].lag) == (Outcome.UP_TO_DATE, 4, 0)
    assert (reports[other].outcome, len(reports[other].objects)) == (Outcome.WAITING, 3)
    assert 0 < (reports[other].lag or 0) <= 7, "less than an object is left, until it is old enough"
    assert (reports[large].outcome, reports[large].objects) == (Outcome.WAITING, ())
    cluster.produce(large, noise(200 * KIB), batch_num_messages=1)
    (again,) = [report for report in archive.run().partitions if report.tp == large]
    assert [o.size_bytes > 280 * KIB for o in again.objects] == [True]


def test_backlog_of_ten_budgets_is_archived_and_every_run_archives_the_small_topics(
    stack: Stack, cluster: Cluster, topic_name: str
) -> None:
    """Two large topic-partitions and 20 small topics in one lane of 256 KiB/s, a budget of 4 s, a backlog of 10 MiB."""
    large = [TopicPartition(f"{topic_name}-large", number) for number in (0, 1)]
    small = [TopicPartition(f"{topic_name}-small{number}", 0) for number in range(20)]
    archive = Archive(
        stack,
        topic_name,
        {"regex": f"{topic_name}-.*"},
        {
            "upload": {"max_age": "0s", "max_bytes": "128KiB"},
            "ingest": {"lanes": 1, "budget": "4s", "rate_limit": "256KiB"},
        },
    )
    cluster.create(large[0].topic, partitions=2)
    for tp in small:
        cluster.create(tp.topic)
    for tp in large:
        cluster.produce(tp, noise(5 << 20), batch_num_messages=4)
    simulated, lags = SimulatedTime(), dict.fromkeys(large, 640)
    runs, producer = 0, cluster.producer()
    with archive.services() as services:
        while any(lags.values()):
            runs += 1
            assert runs <= 14
            for tp in small:
                producer.produce(tp.topic, b"small", partition=0)
            assert producer.flush(20) == 0
            (lane,) = archive.plan()
            began = simulated.now
            report = ingest.drain_lane({STREAM: services}, archive.config, lane, clock=simulated.clock)

            assert not report.failures
            assert simulated.now <= began + 4.001, "no sleep ends after the budget"
            assert report.size_bytes <= (simulated.now - began + 1) * 256 * KIB + 100 * KIB
            reports = {r.tp: r for r in report.partitions}
            assert {tp: reports[tp].messages for tp in small} == dict.fromkeys(small, 1)
            for tp in large:
                before, lags[tp] = lags[tp], (reports[tp].lag or 0) if tp in reports else 0
                assert lags[tp] < before or not before, f"{tp} did not advance"
    assert runs >= 8
    for tp in large:
        assert archive.messages(tp) == cluster.messages(tp)


def test_young_messages_at_the_end_of_the_budget_wait_for_a_later_run(
    stack: Stack, cluster: Cluster, topic_name: str
) -> None:
    tp = TopicPartition(topic_name, 0)
    cluster.create(topic_name)
    cluster.produce(tp, noise(3 << 20), batch_num_messages=4)
    archive = Archive(
        stack,
        topic_name,
        [topic_name],
        {"upload": {"max_age": "1h", "max_bytes": "700KiB"}, "ingest": {"budget": "1s", "rate_limit": "1MiB"}},
    )
    simulated = SimulatedTime()
    with archive.services() as services:
        report = archive.run_one(services, tp, clock=simulated.clock)
        assert report.outcome is Outcome.OUT_OF_TIME
        assert report.objects
        assert all(600 * KIB < o.size_bytes <= 700 * KIB for o in report.objects), "only full objects"
        ends = archive.ranges(tp)[-1][1]
        assert report.committed_offset == ends, "the fetched batches after the last full object are not archived"
        simulated.now += 7200
        report = archive.run_one(services, tp, clock=simulated.clock)
        assert report.objects[0].first_offset == ends
        assert report.objects[-1].size_bytes < 600 * KIB, "the rest is old enough now"
        while report.lag:
            report = archive.run_one(services, tp, clock=simulated.clock)
    assert archive.messages(tp) == cluster.messages(tp)


# --- orphaned uploads -------------------------------------------------------------------------------------------------


def orphan_upload(store: Store, name: BackupName) -> str:
    """Begin a multipart upload with one part, as a killed lane leaves it. Return its id."""
    upload = store.upload_if_absent(name.key(store.prefix))
    upload.write(bytes(store.part_bytes))
    for part in upload._parts:
        part.result()
    assert upload._upload_id is not None
    return upload._upload_id


def test_orphaned_uploads_of_a_stream_are_aborted_and_other_uploads_are_kept(
    stack: Stack,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: os.PathLike[str],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    archive = Archive(stack, topic_name, [topic_name], {"generation": 2})
    config = archive.config
    day = Clock(wall=lambda: time.time() + 86_500)
    with archive.services() as services:
        store = services.store
        own = [orphan_upload(store, BackupName(topic_name, 2, partition, 5)) for partition in (0, 1)]
        older = orphan_upload(store, BackupName(topic_name, 1, 0, 5))
        others = orphan_upload(store, BackupName(f"{topic_name}-others", 2, 0, 5))
        store.upload_if_absent(f"{store.prefix}/backup/{topic_name}/no-backup")

        def pending() -> set[str]:
            return {upload.upload_id for upload in store.pending_uploads()}

        assert pending() == {*own, older, others}
        (begun,) = {u.begun for u in store.pending_uploads() if u.upload_id == older}
        assert abs(datetime.now(UTC) - begun) < timedelta(minutes=5)

        abort_orphaned_uploads(services.coordinator, store, config, STREAM, Clock())
        assert pending() == {*own, older, others}, "they are as young as the upload of a running lane"
        abort_orphaned_uploads(services.coordinator, store, config, STREAM, day)
        assert pending() == {*own, older, others}, "uploads were aborted less than an hour ago"
        monkeypatch.setattr(services.coordinator, "_clock", lambda: time.time() + 3700)
        abort_orphaned_uploads(services.coordinator, store, config, STREAM, day)
        assert pending() == {older, others}
        assert "aborted 2 uploads that were never completed, of 2 topic-partitions" in caplog.text

        again = orphan_upload(store, BackupName(topic_name, 2, 0, 5))
        file = os.path.join(tmp_path, "streams.yaml")  # noqa: PTH118
        with open(file, "w", encoding="utf-8") as written:  # noqa: PTH123
            json.dump(config.model_dump(mode="json"), written)
        monkeypatch.setenv("WAYBILL_CONFIG", file)

        def command(*arguments: str) -> str:
            with pytest.raises(SystemExit) as ended:
                waybill(["uploads", *arguments])
            assert ended.value.code == 0
            return capsys.readouterr().out

        assert [u["upload_id"] for u in json.loads(command("ls", STREAM, "--json"))] == [again]
        assert {u["upload_id"] for u in json.loads(command("ls", "--json"))} == {again, older, others}
        (gone,) = [u for u in store.pending_uploads() if u.upload_id == others]
        assert store.abort_upload(gone)
        assert not store.abort_upload(gone)
        assert command("abort", STREAM) == ""
        assert f"aborted {BackupName(topic_name, 2, 0, 5).key(store.prefix)}" in command(
            "abort", STREAM, "--older-than", "0s"
        )
        assert pending() == {older}
        assert len(command("abort", "--older-than", "0s").splitlines()) == 1
        assert pending() == set()


def test_lane_whose_upload_was_aborted_fails_and_the_next_lane_archives_the_messages(
    stack: Stack, cluster: Cluster, topic_name: str
) -> None:
    """A lane that slept wakes up after another lane has aborted its upload."""
    tp = TopicPartition(topic_name, 0)
    cluster.create(topic_name)
    cluster.produce(tp, noise(20 << 20), batch_num_messages=100)
    archive = Archive(stack, topic_name, [topic_name])

    class AbortingStore(Store):
        def upload_if_absent(self, key: str, metadata: object = None) -> object:  # type: ignore[override]
            upload = super().upload_if_absent(key, metadata)  # type: ignore[arg-type]
            complete = upload.complete

            def abort_and_complete() -> None:
                for pending in self.pending_uploads():
                    assert self.abort_upload(pending)
                complete()

            upload.complete = abort_and_complete  # type: ignore[method-assign]
            return upload

    with archive.services() as services:
        services.store.__class__ = AbortingStore
        report = archive.run_one(services, tp)
        assert report.failure is not None
        assert report.failure.error == "StoreUnavailable"
        services.store.__class__ = Store
        assert archive.run_one(services, tp).outcome is Outcome.UP_TO_DATE
    assert archive.messages(tp) == cluster.messages(tp)
