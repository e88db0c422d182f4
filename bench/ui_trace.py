"""Measure the page Trace: one message by its place, by its id, and from its row back to the archived bytes.

    python bench/ui_trace.py [--messages 1000000] [--objects 60] [--others 4] [--repeats 20]

The script starts Kafka, ZooKeeper and S3, and makes an archive of events of 453 bytes (zstd, three topic-partitions),
its table with message ids, and its tables of dedup, in runs like those of each hour: a run for each tenth of the
messages. `--others`: so many streams with a tenth of the messages each, for a query with the stream "any". Each query
is one request of the page, as `PageTracer` answers it in the API server: it opens the config, the archive and the
catalog each time. S3 is on this machine, so add a round trip for each request to one that is far away.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from events import put_archive
from services import BUCKET, run_name, running_services, topic_name

if TYPE_CHECKING:
    from waybill.config.models import Config

PARTITIONS = 3
RUNS = 10


def config_of(streams: list[str]) -> Config:
    """Return a config of streams with message ids and dedup."""
    from waybill.config.models import Config

    parser = {"name": "json", "event_time": {"field": "event_time", "format": "epoch_ms"}, "message_id": "event_id"}
    return Config.model_validate(
        {
            "version": 1,
            "storage": {"bucket": os.environ[BUCKET], "prefix": run_name()},
            "zookeeper": {"root": run_name()},
            "streams": {
                name: {"topics": [topic_name(name)], "parser": parser, "table": f"bench.{name}", "dedup": {}}
                for name in streams
            },
        }
    )


def make_stream(config: Config, name: str, messages: int, objects: int) -> None:
    """Make archive and tables of a stream."""
    from waybill.config.names import BackupName, TopicPartition, backup_prefix
    from waybill.services.coordination import CommittedOffset, Coordinator
    from waybill.services.store import Store
    from waybill.tables.dedup.execute import InThisProcess
    from waybill.tables.dedup.sweep import run_sweep
    from waybill.tables.partition.partition_run import run_partition
    from waybill.tables.partition.tasks import run_task

    topic = topic_name(name)
    with Store.of(config.storage) as store:
        _, ends = put_archive(store, topic, messages=messages, objects=objects, partitions=PARTITIONS)
        firsts: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        for key in store.keys(backup_prefix(store.prefix, topic)):
            found = BackupName.parse(key)
            firsts[found.partition].append(found.first_offset)
    versions = [-1] * PARTITIONS
    for run in range(1, RUNS + 1):
        with Coordinator.of(config, name) as coordinator:
            for partition, end in enumerate(ends):
                tp = TopicPartition(topic, partition)
                starts = [*sorted(firsts[partition]), end]  # committed offsets are ends of objects
                at = CommittedOffset(starts[max(1, (len(starts) - 1) * run // RUNS)], start_offset=0)
                versions[partition] = coordinator.write_committed(tp, at, versions[partition]).version
        run_partition(config, name, lambda job, tasks: [run_task(job, task) for task in tasks])
        run_sweep(config, name, InThisProcess())


def measure(title: str, query: Callable[[], object], repeats: int) -> None:
    """Print the first and the median time of a query."""
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        query()
        taken.append((time.perf_counter() - began) * 1000)
    later = sorted(taken[1:])
    print(f"{title}: first {taken[0]:.0f} ms, then median {statistics.median(later):.0f} ms, most {later[-1]:.0f} ms")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--objects", type=int, default=60)
    parser.add_argument("--others", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    with running_services():
        others = [f"other{number}" for number in range(options.others)]
        config = config_of(["flights", *others])
        began = time.monotonic()
        make_stream(config, "flights", options.messages, options.objects)
        for name in others:
            make_stream(config, name, options.messages // 10, max(PARTITIONS, options.objects // 10))
        print(f"archives and tables made in {time.monotonic() - began:.0f} s")
        _measure_queries(config, options)


def _measure_queries(config: Config, options: argparse.Namespace) -> None:
    from waybill.interfaces.web.frame import Links
    from waybill.interfaces.web.trace import PageTracer
    from waybill.interfaces.web.trace_page import TraceQuery, TraceView

    tracer, chance, links = PageTracer(lambda: config), random.Random(1), Links("", "")
    streams, topic = tuple(config.streams), topic_name("flights")

    def trace(query: TraceQuery) -> TraceView:
        page = tracer(query, links, streams)
        assert not page.problem, page.problem
        [found] = page.found
        assert found.message is not None, "the original bytes"
        assert found.row is not None, "the row"
        return found

    def place(first: int = 0) -> TraceQuery:
        partition, offset = chance.randrange(PARTITIONS), chance.randrange(first, options.messages // PARTITIONS - 1)
        return TraceQuery("flights", topic, str(partition), str(offset))

    # The other streams have the same events as the beginning of this one.
    found = [trace(place(options.messages // PARTITIONS // 2)) for _ in range(options.repeats)]
    ids = [next(field.value for field in each.row.fields if field.name == "message_id") for each in found if each.row]
    measure("by topic-partition and offset: object, bytes, row, duplicates", lambda: trace(place()), options.repeats)
    for stream in ("flights", ""):
        queue = iter(ids)
        title = f"by message id, stream {stream or f'any of {len(streams)}'}: row, and back to the bytes"
        measure(title, lambda queue=queue, stream=stream: trace(TraceQuery(stream, id=next(queue))), len(ids))  # type: ignore[misc]
    measure("the bytes of a value, to download", lambda: tracer.value(place()), options.repeats)


if __name__ == "__main__":
    main()
