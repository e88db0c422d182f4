"""Lanes, partition runs and sweeps are killed: the ledger's totals are those of an independent consumer.

20 seeded kills, and 50 with `MATRIX=full`.

The stream has transactions of which some are aborted, a compacted topic, messages that cannot be parsed, repeated ids,
and an accepted gap.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from archived_stream import ArchivedStream
from driver_processes import DriverProcesses, open_driver_processes
from ingest_scenes import Cluster

from devstack import Stack
from waybill.base import failpoints
from waybill.config.names import TopicPartition

pytestmark = [pytest.mark.deep, pytest.mark.faults, pytest.mark.integration]

DRIVER = """
from waybill.tables.dedup.execute import InThisProcess, warm_up
from waybill.tables.dedup.sweep import run_all_sweeps
from waybill.archive.ingest import plan_lanes, run_lane
from waybill.tables.partition.partition_run import run_partition
from waybill.tables.partition.tasks import run_task

warm_up()

def drive(config, what):
    if what == "ingest":
        for lane in plan_lanes(config, "events"):
            run_lane(config, lane)
    elif what == "partition":
        run_partition(config, "events", lambda job, tasks: [run_task(job, task) for task in tasks])
    else:
        list(run_all_sweeps(config, "events", InThisProcess()))
"""

KILLS = 50 if os.environ.get("WAYBILL_MATRIX") == "full" else 20
PLACES = {
    "ingest": [name for name in failpoints.INGEST if name not in {"ingest.object_refused", "ingest.object_inspected"}],
    "partition": list(failpoints.PARTITION),
    "sweep": ["sweep.planned", "sweep.matched", "sweep.executed", "sweep.staged", "sweep.duplicates_committed"],
}
COMPACTED: dict[str, Any] = {
    "cleanup_policy": "compact",
    "segment_ms": 200,
    "min_cleanable_dirty_ratio": 0.01,
    "min_compaction_lag_ms": 0,
    "max_compaction_lag_ms": 300,
    "delete_retention_ms": 100,
}


@pytest.fixture(scope="module")
def processes(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverProcesses]:
    del stack
    with open_driver_processes(tmp_path_factory.mktemp("ledger"), DRIVER) as opened:
        yield opened


@pytest.fixture
def cluster(stack: Stack) -> Cluster:
    return Cluster(stack.bootstrap_servers)


@dataclass
class Producers:
    """Sends messages of random kinds to the two ordinary topic-partitions."""

    stream: ArchivedStream
    cluster: Cluster
    random: random.Random
    sent: int = 0
    seen: dict[TopicPartition, dict[int, bytes]] = field(default_factory=dict)
    """What the independent consumer has read, by offset: Kafka deletes some of it later."""

    def produce(self) -> None:
        partition = self.random.randrange(2)
        if self.random.random() < 0.5:
            self.cluster.produce(self.stream.tp(partition), [(None, self._value()) for _ in range(5)])
            return
        producer = self.cluster.producer(transactional_id=f"{self.stream.topic}-{self.sent}")
        producer.init_transactions(20)
        producer.begin_transaction()
        for _ in range(5):
            producer.produce(self.stream.topic, self._value(), partition=partition)
        producer.flush(20)
        (producer.abort_transaction if self.random.random() < 0.5 else producer.commit_transaction)(20)
        self.cluster.wait_for_markers(self.stream.tp(partition))

    def consume(self, tp: TopicPartition, below: int | None = None) -> None:
        for record in self.cluster.messages(tp):
            if below is None or record.offset < below:
                self.seen.setdefault(tp, {})[record.offset] = record.value or b""

    def _value(self) -> bytes:
        self.sent += 1
        if self.random.random() < 0.1:
            return b"{"
        return value(self.random.randrange(self.sent) if self.random.random() < 0.2 else self.sent)


def value(n: int) -> bytes:
    return json.dumps({"id": f"e{n}", "time": f"2026-01-{1 + n % 5:02d}T00:00:00Z"}).encode()


def produce_compacted(cluster: Cluster, tp: TopicPartition) -> int:
    """Produce until the log cleaner has removed messages, wait until it is done, and return the number of messages."""
    cluster.create(tp.topic, **COMPACTED)
    sent = 0
    for _ in range(4):
        cluster.produce(tp, [(b"%d" % (i % 5), value(100_000 + sent + i)) for i in range(40)], batch_num_messages=10)
        sent += 40
        time.sleep(0.25)
    deadline = time.monotonic() + 40
    while len(cluster.messages(tp)) > 60:
        assert time.monotonic() < deadline, "the log cleaner did not run"
        cluster.produce(tp, [(b"roll", value(100_000 + sent))])
        sent += 1
        time.sleep(0.5)
    counts = [0]
    while len(counts) < 4 or len(set(counts[-4:])) > 1:
        assert time.monotonic() < deadline + 40, "the log cleaner does not come to an end"
        counts.append(len(cluster.messages(tp)))
        time.sleep(1)
    return sent


def prepare(directory: Path, topic: str) -> ArchivedStream:
    stream = ArchivedStream(directory, topic, max_bytes="64KiB")
    document = yaml.safe_load(stream.file.read_text())
    document["streams"]["events"]["topics"] = [topic, f"{topic}-compacted"]
    document["streams"]["events"]["dedup"] = {"window": "30d"}
    document["zookeeper"]["session_timeout"] = "2s"
    stream.file.write_text(yaml.safe_dump(document))
    return stream


def accept_a_gap(stream: ArchivedStream, cluster: Cluster, producers: Producers) -> None:
    """Let Kafka delete messages of partition 0 that are not archived, and accept that."""
    with stream.coordinator() as coordinator:
        committed = coordinator.read_committed(stream.tp())
    assert committed is not None
    producers.consume(stream.tp(), committed.committed_offset)
    cluster.produce(stream.tp(), [(None, value(200_000 + n)) for n in range(30)])
    cluster.delete_records(stream.tp(), before=committed.committed_offset + 20)
    deadline = time.monotonic() + 60
    while (ran := stream.waybill("gaps", "accept", stream.topic, "0", "--reason", "drill")).code != 0:
        assert time.monotonic() < deadline, ran.err  # the lock of a killed lane lives as long as its session
        time.sleep(1)


def finish(stream: ArchivedStream, processes: DriverProcesses) -> dict[str, Any]:
    """Run everything undisturbed until the ledger has nothing left to do, and return it."""
    deadline = time.monotonic() + 180
    while True:
        for what in ("ingest", "partition", "sweep"):
            assert processes.run(stream.config, "", what) == 0
        ran = stream.waybill("ledger", "events", "--json")
        assert ran.code == 0, ran.out + ran.err
        lines = ran.document["topic_partitions"]
        if not any(line["not_archived"] or line["tables"]["waiting"] or line["dedup"]["unswept"] for line in lines):
            return dict(ran.document)
        assert time.monotonic() < deadline, lines
        time.sleep(1)


def test_totals_equal_those_of_an_independent_consumer_after_kills(
    processes: DriverProcesses, cluster: Cluster, tmp_path: Path, topic_name: str
) -> None:
    stream = prepare(tmp_path, topic_name)
    compacted = TopicPartition(f"{topic_name}-compacted", 0)
    sent_compacted = produce_compacted(cluster, compacted)
    producers = Producers(stream, cluster, random.Random(16))
    producers.produce()
    kills = tries = 0
    while kills < KILLS:
        tries += 1
        assert tries < 12 * KILLS, f"only {kills} processes were killed"
        producers.produce()
        what = producers.random.choice([*PLACES, "ingest"])
        place = producers.random.choice(PLACES[what])
        at = producers.random.choice(("", "", "@2"))
        kills += processes.run(stream.config, f"{place}=kill{at}", what) == -signal.SIGKILL
        # Whatever state the kill has left balances, though much of it is not partitioned or swept.
        ran = stream.waybill("ledger", "events", "--json", "--no-kafka")
        assert ran.code == 0, (what, place, ran.out + ran.err)
        if kills == KILLS // 2 and not stream.waybill("gaps", "ls", "--json").document["accepted"]:
            finish(stream, processes)
            accept_a_gap(stream, cluster, producers)

    found = finish(stream, processes)
    for tp in (stream.tp(0), stream.tp(1), compacted):
        producers.consume(tp)
    lines = {TopicPartition(line["topic"], line["partition"]): line for line in found["topic_partitions"]}
    assert {tp: line["messages"] for tp, line in lines.items()} == {tp: len(of) for tp, of in producers.seen.items()}
    messages = [text for of in producers.seen.values() for text in of.values()]
    good = [text for text in messages if text != b"{"]
    assert sum(line["tables"]["rows"] for line in lines.values()) == len(good)
    assert sum(line["tables"]["quarantine"] for line in lines.values()) == len(messages) - len(good)
    assert sum(line["dedup"]["unique"] for line in lines.values()) == len({json.loads(text)["id"] for text in good})
    assert lines[stream.tp()]["accepted_gaps"] == 20
    assert lines[compacted]["removed_by_compaction"] + lines[compacted]["reason_not_recorded"] == (
        sent_compacted - lines[compacted]["messages"]
    )
    # The messages in the objects, counted without what ingest has recorded.
    read = stream.waybill("ledger", "events", "--json", "--read-objects")
    assert read.code == 0, read.out
    assert [line["messages"] for line in read.document["topic_partitions"]] == [
        line["messages"] for line in found["topic_partitions"]
    ]
