"""The usage of processes in ZooKeeper: it adds up, is counted once, and old days are removed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from archived_stream import ArchivedStream
from kazoo.exceptions import ConnectionLoss
from pyspark.sql import SparkSession

from devstack import Stack
from waybill.archive.ingest import Lane, LaneShare, run_lane
from waybill.base.metering import Tally, meter
from waybill.config.connections import ZooKeeperEndpoint, find_connection
from waybill.services.coordination import KEPT_DAYS, UsageStore, ZooKeeperSession
from waybill.services.coordination.paths import usage_path
from waybill.services.store import Store
from waybill.tables.spark.execute import try_each

pytestmark = pytest.mark.integration

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


@pytest.fixture
def session(stack: Stack) -> Iterator[ZooKeeperSession]:
    with ZooKeeperSession(ZooKeeperEndpoint.of(find_connection("zookeeper_default"))) as opened:
        yield opened


def by_stream(store: UsageStore) -> dict[str, Tally]:
    found: dict[str, Tally] = {}
    for each in store.today():
        found.setdefault(each.stream, Tally()).add(each.tally)
    return found


def puts(count: int) -> Tally:
    return Tally.from_fields({"requests": {"PutObject": count}, "cpu": {"ingest_lane": count / 8}})


def test_processes_of_one_kind_and_of_several_add_up(session: ZooKeeperSession, topic_name: str) -> None:
    store = UsageStore(session, topic_name, lambda: NOON.timestamp())
    store.add("ingest-0", {"a": puts(1), "b": puts(2)})
    store.add("ingest-0", {"a": puts(4)})
    store.add("ingest-1", {"a": puts(8)})
    store.add("partition", {"b": puts(16)})
    found = by_stream(store)
    assert {name: tally.requests["PutObject"] for name, tally in found.items()} == {"a": 13, "b": 18}
    assert found["a"].cpu_seconds == {"ingest_lane": 13 / 8}
    kinds = {(each.process, each.stream): each.tally.requests["PutObject"] for each in store.today()}
    assert kinds == {("ingest", "a"): 13, ("ingest", "b"): 2, ("partition", "b"): 16}
    assert store.read(NOON.date(), NOON.date()) == store.today()
    assert store.read(NOON.date() - timedelta(days=3), NOON.date() - timedelta(days=1)) == []


def test_a_rival_that_writes_in_between_loses_nothing(
    session: ZooKeeperSession, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = UsageStore(session, topic_name)
    read, rivals = session.get, [1, 1]

    def get(path: str) -> tuple[bytes, int] | None:
        found = read(path)
        if rivals:
            rivals.pop()
            with monkeypatch.context() as patch:
                patch.setattr(session, "get", read)
                store.add("ingest-0", {"a": puts(1)})
        return found

    monkeypatch.setattr(session, "get", get)
    store.add("ingest-0", {"a": puts(10)})
    assert by_stream(store)["a"].requests["PutObject"] == 12


def test_a_write_whose_answer_is_lost_is_not_repeated(
    session: ZooKeeperSession, topic_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = UsageStore(session, topic_name)
    store.add("ingest-0", {"a": puts(1)})
    write = session.client.set

    def set_and_lose(*arguments: object, **options: object) -> None:
        write(*arguments, **options)
        raise ConnectionLoss

    monkeypatch.setattr(session.client, "set", set_and_lose)
    with caplog.at_level(logging.WARNING):
        store.add("ingest-0", {"a": puts(2)})
    assert "the usage of this process is not stored" in caplog.text
    assert by_stream(store)["a"].requests["PutObject"] == 3


def test_the_first_process_of_a_day_removes_the_days_that_are_too_old(
    session: ZooKeeperSession, topic_name: str
) -> None:
    def at(day: date) -> UsageStore:
        moment = datetime(day.year, day.month, day.day, 5, tzinfo=UTC)
        return UsageStore(session, topic_name, lambda: moment.timestamp())

    today = NOON.date()
    oldest_kept = today - timedelta(days=KEPT_DAYS - 1)
    for day in (oldest_kept - timedelta(days=1), oldest_kept):
        at(day).add("ingest-0", {"a": puts(1)})
        at(day).add("partition", {"a": puts(1)})
    at(today).add("ingest-0", {"a": puts(1)})
    assert at(today).days() == [oldest_kept, today]


def test_a_damaged_node_loses_the_counts_and_does_not_fail_the_process(
    session: ZooKeeperSession, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    session.write(usage_path(topic_name, NOON.date().isoformat(), "ingest-0"), b'{"v":1,"streams":3}', -1)
    with caplog.at_level(logging.WARNING):
        UsageStore(session, topic_name, lambda: NOON.timestamp()).add("ingest-0", {"a": puts(1)})
    assert "does not hold a document of Waybill's" in caplog.text


def test_a_lane_counts_the_requests_of_each_of_its_streams(
    session: ZooKeeperSession, topic_name: str, tmp_path: Path
) -> None:
    stream = ArchivedStream(tmp_path, topic_name, partitions=2, max_bytes="1KiB")
    second = f"  other:\n    topics: [{topic_name}]\n    generation: 2\n    upload: {{max_age: 0s}}\n"
    second += "    parser: {event_time: {field: time}, message_id: id}\n    table: t.other\n"
    stream.file.write_text(stream.file.read_text() + second)
    for _ in range(5):
        stream.produce_events(10)
    shares = (
        LaneShare(stream="events", topic=topic_name, partition=0, estimated_bytes=0),
        LaneShare(stream="other", topic=topic_name, partition=0, estimated_bytes=0),
    )
    with Store.of(stream.config.storage) as store:
        store.probe()  # else the first lane of a bucket does it, and counts it
    meter.take_total("before")
    report = run_lane(stream.config, Lane(number=3, shares=shares, planning_cpu_seconds=0.5))
    assert not report.failures
    found = by_stream(UsageStore(session, topic_name))
    objects = {each.stream: each.objects for each in report.streams}
    assert objects["events"] > 1 == objects["other"]
    # A chain start, and the objects.
    assert {name: tally.requests["PutObject"] for name, tally in found.items()} == {
        name: 1 + count for name, count in objects.items()
    }
    assert {name: tally.messages for name, tally in found.items()} == {"events": 50, "other": 50}
    assert sum(tally.cpu_seconds["ingest_plan"] for tally in found.values()) == pytest.approx(0.5, abs=1e-3)
    assert min(tally.cpu_seconds["ingest_lane"] for tally in found.values()) > 0


def test_what_executors_use_comes_back_with_their_results(spark: SparkSession) -> None:
    def work(number: int) -> int:
        from waybill.base.metering import meter  # that of the executor's process

        meter.count_request("PutObject", 7)
        return number * number

    meter.take_total("before")
    assert try_each(lambda: spark.sparkContext, work, [1, 2, 3]) == [1, 4, 9]
    used = meter.take("partition", ["a"], "driver")["a"]
    assert used.requests == {"PutObject": 3}
    assert used.sent_bytes == 21
    assert 0 < used.cpu_seconds["partition_tasks"] < 30
