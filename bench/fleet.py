"""Many streams on one machine: what the whole stack costs per minute, how old messages get, and the hourly jobs.

    python bench/fleet.py [--streams N] [--minutes N] [--case NAME] [--json FILE]

The script starts the local stack with Airflow, and a config of `--streams` streams of three topic-partitions each, all
in the default group, with `upload.max_age: 0s` and `dedup`. The rows:

- `idle`: the DAG `ingest` runs every minute, and no stream has new messages.
- `active`: each stream gets `--rate` messages of about 450 bytes per minute.
- `hourly`: the DAGs `partition` and `dedup` each run once over everything that was archived.

CPU seconds are those of all servers and their processes, Kafka, ZooKeeper and S3 included, without this script, which
produces the messages. `…_without` is the same stack before any DAG is unpaused. The age of a topic-partition is that of
its oldest message that is not below the committed offset; the script reads the committed offsets every two seconds.
Airflow's rows per day are the growth of all tables of its database during the measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_idle import cpu_by_server
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from devstack import Stack
    from devstack.airflow import AirflowClient
    from waybill.config.models import Config
    from waybill.config.names import TopicPartition

PARTITIONS = 3
CASES = ("idle", "active", "hourly")
_SETTLE_SECONDS = 45.0
_SAMPLE_SECONDS = 2.0
_JOB_SECONDS = 3600.0
_TOPICS_PER_REQUEST = 20


@dataclass
class Row:
    """The figures of one case; None where the case has none."""

    case: str
    streams: int
    seconds: float
    """How long was measured, or how long the jobs took."""
    cpu_seconds: float
    cpu_seconds_per_minute: float | None = None
    cpu_seconds_per_minute_without: float | None = None
    messages: int | None = None
    p50_age_seconds: float | None = None
    p99_age_seconds: float | None = None
    db_rows_per_day: int | None = None
    failed_runs: int | None = None


# --- streams and messages ---------------------------------------------------------------------------------------------


def write_config(path: Path, streams: int) -> Path:
    import yaml

    document = {
        "version": 1,
        "storage": {"bucket": "waybill"},
        "streams": {
            f"s{number}": {
                "topics": [f"fleet-{number}"],
                "upload": {"max_age": "0s"},
                "parser": {"event_time": {"field": "at", "format": "epoch_ms"}, "message_id": "id"},
                "table": f"fleet.t{number}",
                "dedup": {},
            }
            for number in range(streams)
        },
    }
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def create_topics(servers: str, streams: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    names = [f"fleet-{number}" for number in range(streams)]
    for start in range(0, streams, _TOPICS_PER_REQUEST):
        new = [NewTopic(name, PARTITIONS, 1) for name in names[start : start + _TOPICS_PER_REQUEST]]
        for created in admin.create_topics(new, operation_timeout=60).values():
            created.result(timeout=120)


class Fleet(threading.Thread):
    """Produces messages at a steady rate, and samples how old the oldest unarchived message of each partition is."""

    def __init__(self, config: Config, servers: str, rate: int) -> None:
        super().__init__(daemon=True)
        self._config, self._servers, self._rate = config, servers, rate
        self._ended = threading.Event()
        self.produced = 0
        self.ages: list[float] = []
        self._pending: dict[TopicPartition, deque[tuple[int, float]]] = {}
        """Offset and time of the messages that are not archived, oldest first."""
        self.error: BaseException | None = None

    def end(self) -> None:
        self._ended.set()
        self.join(timeout=60)
        if self.error is not None:
            raise RuntimeError("the producer failed") from self.error

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error

    def _work(self) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self._servers, "linger.ms": 200, "compression.type": "zstd"})
        threading.Thread(target=self._sample, daemon=True).start()
        streams = list(self._config.streams)
        gap = 60.0 / (self._rate * len(streams))
        start = due = time.monotonic()
        while not self._ended.is_set():
            now = time.monotonic()
            while due <= now:
                number = self.produced
                stream = number % len(streams)
                event = {"id": f"{number}", "at": int(time.time() * 1000), "text": "x" * 400}
                try:
                    producer.produce(
                        f"fleet-{stream}",
                        json.dumps(event).encode(),
                        partition=number // len(streams) % PARTITIONS,
                        on_delivery=self._delivered,
                    )
                except BufferError:  # the brokers are behind: deliver some messages first
                    producer.poll(0.5)
                    continue
                self.produced += 1
                due = start + self.produced * gap
            producer.poll(0.05)
        producer.flush(60)

    def _delivered(self, error: Any, message: Any) -> None:
        from waybill.config.names import TopicPartition

        if error is not None:
            self.error = RuntimeError(str(error))
            return
        tp = TopicPartition(message.topic(), message.partition())
        self._pending.setdefault(tp, deque()).append((message.offset(), time.time()))

    def _sample(self) -> None:
        from waybill.config.names import TopicPartition
        from waybill.services.coordination import Coordinator, ZooKeeperSession, read_ingest_states

        with ZooKeeperSession.of(self._config) as session:
            coordinators = {name: Coordinator.sharing(session, self._config, name) for name in self._config.streams}
            tps = {
                name: [TopicPartition(stream.topics[0], number) for number in range(PARTITIONS)]
                for name, stream in self._config.streams.items()
                if isinstance(stream.topics, tuple)
            }
            while not self._ended.wait(_SAMPLE_SECONDS):
                states, now = read_ingest_states(session, coordinators, tps), time.time()
                for state in states.values():
                    for tp, committed in state.committed.items():
                        pending = self._pending.get(tp, deque())
                        while pending and pending[0][0] < committed.committed_offset:
                            pending.popleft()
                        if pending:
                            self.ages.append(now - pending[0][1])


def percentile(values: list[float], share: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """What the stack used during a measurement."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    db_rows: int = 0

    @property
    def cpu_seconds_per_minute(self) -> float:
        return self.cpu_seconds * 60 / self.seconds

    @property
    def db_rows_per_day(self) -> int:
        return round(self.db_rows * 86_400 / self.seconds)


@contextmanager
def measured(stack: Stack) -> Iterator[Measured]:
    result = Measured()
    cpu, rows, start = cpu_by_server(stack), count_db_rows(stack), time.monotonic()
    yield result
    result.seconds = time.monotonic() - start
    after = cpu_by_server(stack)
    result.cpu_seconds = sum(after[name] - cpu.get(name, 0.0) for name in after)
    result.db_rows = count_db_rows(stack) - rows


def count_db_rows(stack: Stack) -> int:
    with closing(sqlite3.connect(f"file:{stack.airflow.database}?mode=ro", uri=True, timeout=60)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return sum(database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables)


def failed_runs(airflow: AirflowClient, dag_id: str, before: set[str]) -> int:
    return sum(run.state == "failed" for run in airflow.runs(dag_id) if run.run_id not in before)


def run_ids(airflow: AirflowClient, dag_id: str) -> set[str]:
    return {run.run_id for run in airflow.runs(dag_id)}


def measure_ingest(
    stack: Stack, airflow: AirflowClient, config: Config, case: str, arguments: argparse.Namespace, without: float
) -> Row:
    fleet = Fleet(config, stack.bootstrap_servers, arguments.rate) if case == "active" else None
    airflow.unpause("ingest")
    if fleet is not None:
        fleet.start()
    time.sleep(arguments.warm_up * 60)
    if fleet is not None:
        fleet.ages.clear()
    before = run_ids(airflow, "ingest")
    with measured(stack) as used:
        time.sleep(arguments.minutes * 60)
    failed = failed_runs(airflow, "ingest", before)
    if fleet is not None:
        fleet.end()
        time.sleep(90)  # the last messages are archived
    airflow.pause("ingest")
    time.sleep(30)
    return Row(
        case,
        len(config.streams),
        used.seconds,
        used.cpu_seconds,
        cpu_seconds_per_minute=used.cpu_seconds_per_minute,
        cpu_seconds_per_minute_without=without,
        messages=None if fleet is None else fleet.produced,
        p50_age_seconds=None if fleet is None else percentile(fleet.ages, 0.5),
        p99_age_seconds=None if fleet is None else percentile(fleet.ages, 0.99),
        db_rows_per_day=used.db_rows_per_day,
        failed_runs=failed,
    )


def measure_hourly(stack: Stack, airflow: AirflowClient, config: Config) -> Row:
    failed = 0
    with measured(stack) as used:
        for dag_id in ("partition", "dedup"):
            airflow.unpause(dag_id)
            run_id = airflow.trigger(dag_id)
            run = airflow.wait_for_run(dag_id, run_id, seconds=_JOB_SECONDS, interval_seconds=2.0)
            airflow.pause(dag_id)
            failed += run.state == "failed"
            print(f"{dag_id}: {run.state}", file=sys.stderr, flush=True)
    return Row("hourly", len(config.streams), used.seconds, used.cpu_seconds, failed_runs=failed)


def measure_all(stack: Stack, config: Config, path: Path, arguments: argparse.Namespace) -> Iterator[Row]:
    create_topics(stack.bootstrap_servers, arguments.streams)
    stack.start_airflow({"WAYBILL_CONFIG": str(path)})
    with stack.airflow.client() as airflow:
        for dag_id in ("ingest", "partition", "dedup"):
            airflow.wait_for_dag(dag_id, seconds=180)
        time.sleep(_SETTLE_SECONDS)
        with measured(stack) as used:
            time.sleep(arguments.minutes * 60)
        without = used.cpu_seconds_per_minute
        print(f"without: {without:.1f} CPU s per minute", file=sys.stderr, flush=True)
        for case in arguments.case or CASES:
            if case == "hourly":
                yield measure_hourly(stack, airflow, config)
            else:
                yield measure_ingest(stack, airflow, config, case, arguments, without)


def show(rows: list[Row]) -> None:
    table = Table(title="One machine, many streams", title_justify="left")
    for name in Row.__dataclass_fields__:
        table.add_column(name, justify="right")
    for row in rows:
        values = asdict(row).values()
        table.add_row(*("" if v is None else f"{v:,.1f}" if isinstance(v, float) else str(v) for v in values))
    Console(width=max(200, Console().width)).print(table)


def main() -> None:
    from devstack import Stack
    from waybill.config.models import load_config

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=int, default=1000, help="messages per minute and stream")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long each case is measured")
    parser.add_argument("--warm-up", type=float, default=3.0, help="minutes before a measurement begins")
    parser.add_argument("--case", action="append", choices=CASES, help="only this case; may be repeated")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as folder:
        path = write_config(Path(folder) / "streams.yaml", arguments.streams)
        os.environ["WAYBILL_CONFIG"] = str(path)
        with Stack.start(Path(folder) / "stack", on_progress=lambda line: print(line, file=sys.stderr)) as stack:
            os.environ.update(stack.environment())
            for row in measure_all(stack, load_config(path), path, arguments):
                rows.append(row)
                show(rows)
                if arguments.json:  # after each case: all of them take half an hour
                    arguments.json.write_text(json.dumps([asdict(each) for each in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
