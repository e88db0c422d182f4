"""bench/dedup.py's `waybill`: the real sweep, `waybill.dedup.sweep` on Spark's workers, over real tables.

Its files lie on the local disk as the rivals' do, but behind an S3 server (versitygw), since S3 is where Waybill keeps
them: the server's CPU is shown beside Waybill's own, and what it reads from the disk counts as read.

The window's index is made here as hourly sweeps would have left it: `hourly_runs` plays four weeks of them, by numbers
alone, and has `waybill.dedup.index.merge` say each hour what is merged. The runs themselves are `write_run`'s.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pyarrow as pa
from _dedup_data import NOW_MS, PARTITIONS, TOPIC, WINDOW_MS, Keys
from _dedup_method import Given, Method

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from waybill.dedup.index.sorted_runs import SortedRun
    from waybill.store import ListedObject

__all__ = ["Waybill", "hourly_runs", "s3_server"]

_STREAM = "bench"
_HOUR_MS = 3_600_000
_HOURS = WINDOW_MS // _HOUR_MS
_BUCKET, _CATALOG, _PID = "WAYBILL_BENCH_BUCKET", "WAYBILL_BENCH_CATALOG", "WAYBILL_BENCH_S3_PID"


@contextmanager
def s3_server(folder: Path) -> Iterator[None]:
    """versitygw over a directory, and in the environment the connections to it, and what a sweep's Arrow is told."""
    from devstack.s3 import REGION, S3Server, choose_server
    from waybill.spark.job import with_kept_memory

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = S3Server(choose_server(), folder, port, "bench", uuid.uuid4().hex, "bench")
    (spec,) = server.specs(folder)
    with spec.log.open("wb") as log:
        process = subprocess.Popen(spec.command, env=os.environ | spec.environment, cwd=folder, stdout=log, stderr=log)
    catalog = folder / "catalog.db"
    extra = {"endpoint_url": server.endpoint_url, "region_name": REGION}
    aws = {"conn_type": "aws", "login": server.access_key, "password": server.secret_key, "extra": extra}
    sql = {"type": "sql", "warehouse": f"s3://{server.bucket}/warehouse"}
    iceberg = {"conn_type": "iceberg", "host": f"sqlite:///{catalog}", "extra": sql}
    os.environ |= {
        "AIRFLOW_CONN_AWS_DEFAULT": json.dumps(aws),
        "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps(iceberg),
        _BUCKET: server.bucket,
        _CATALOG: str(catalog),
        _PID: str(process.pid),
    }
    os.environ.update(with_kept_memory(os.environ))
    try:
        until = time.monotonic() + 30
        while server.why_not_ready() is not None:
            if time.monotonic() > until or process.poll() is not None:
                raise RuntimeError(f"the S3 server does not answer: {server.why_not_ready()}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def hourly_runs(count: int, buckets: int, memory_bytes: int, unmerged_hours: int = 0) -> list[tuple[int, int]]:
    """Which keys of a window of `count` lie in one run of each bucket, as [first, end) by number, in order.

    One sweep an hour for four weeks, and a merge of what the policy chooses after each, but for the last
    `unmerged_hours`. Buckets are alike.
    """
    from waybill.dedup.index.merge import MergePolicy, choose_merges

    policy = MergePolicy.of(WINDOW_MS, memory_bytes)
    runs: list[SortedRun] = []
    places: dict[str, tuple[int, int]] = {}
    for hour in range(_HOURS):
        first, end = count * hour // _HOURS, count * (hour + 1) // _HOURS
        path = f"{first}-{end}"
        places[path] = (first, end)
        last_ms = NOW_MS - (_HOURS - hour - 1) * _HOUR_MS - 1
        keys = max((end - first) // buckets, 1)
        runs.append(_run_of(path, hour, keys, last_ms - _HOUR_MS + 1, last_ms))
        while hour < _HOURS - unmerged_hours and (groups := choose_merges(runs, policy)):
            for group in groups:
                spans = [places[run.path] for run in group]
                span = min(first for first, _ in spans), max(end for _, end in spans)
                merged = _run_of(
                    f"{span[0]}-{span[1]}",
                    group[0].first_sequence,
                    sum(run.keys for run in group),
                    min(run.min_arrived_ms for run in group),
                    max(run.max_arrived_ms for run in group),
                )
                merged = replace(merged, last_sequence=max(run.last_sequence for run in group))
                places[merged.path] = span
                runs = [run for run in runs if run not in group] + [merged]
    return sorted(places[run.path] for run in runs)


def _run_of(path: str, sequence: int, keys: int, min_ms: int, max_ms: int) -> SortedRun:
    from waybill.dedup.index.sorted_runs import SortedRun

    return SortedRun(0, sequence, sequence, keys, min_ms, max_ms, path, 0, 0, 0, "", 0, 0)


class Waybill(Method):
    """A sweep; with `unmerged_hours` over an index whose newest runs nobody has merged yet."""

    def __init__(self, given: Given, unmerged_hours: int = 0) -> None:
        from waybill.config import Config

        super().__init__(given)
        self.unmerged_hours = unmerged_hours
        self.kept = ExitStack()
        parser = {"name": "json", "event_time": {"field": "event_time", "format": "epoch_ms"}, "message_id": "event_id"}
        stream = {"topics": [TOPIC], "parser": parser, "table": f"bench.t{uuid.uuid4().hex[:12]}", "dedup": {}}
        storage = {"bucket": os.environ[_BUCKET], "prefix": f"bench-{uuid.uuid4().hex[:12]}"}
        self.config = Config.model_validate({"version": 1, "storage": storage, "streams": {_STREAM: stream}})

    # --- session ---

    def start(self) -> None:
        from waybill.spark import daemon
        from waybill.spark.job import with_brief_jvm
        from waybill.spark.daemon import forked_daemon
        from waybill.spark.session import connection_ids, spark_context

        # As the DAG's operator (but for `s3_server`'s part) and spark_jobs/dedup.py have it.
        os.environ.update(with_brief_jvm(os.environ))
        os.environ["SPARK_LOCAL_DIRS"] = str(self.given.folder)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        environment = self.kept.enter_context(forked_daemon(daemon.warm_up_dedup, daemon.run))
        self.context = spark_context("bench-dedup", connection_ids(self.config), environment)
        self.context.parallelize(range(2), 2).map(lambda number: number).collect()

    def close(self) -> None:
        self.context.stop()
        self.kept.close()

    # --- the window ---

    def prepare(self) -> None:
        from waybill.connections import CatalogEndpoint, S3Endpoint, find_connection
        from waybill.names import TopicPartition
        from waybill.store import Store
        from waybill.tables import open_catalog

        s3 = S3Endpoint.of(find_connection("aws_default"))
        self.catalog = open_catalog(CatalogEndpoint.of(find_connection("iceberg_default")), s3)
        self.store = Store.of(self.config.storage)
        self.topic_partitions = tuple(TopicPartition(TOPIC, number) for number in range(PARTITIONS))
        unique = self._make_tables()
        self._make_index(unique)
        self.catalog.close()
        self.saved = self.given.folder / "catalog.db"
        shutil.copyfile(os.environ[_CATALOG], self.saved)
        self.objects = {found.key: found.size_bytes for found in self.store.list_objects("")}

    def _make_tables(self) -> Table:
        """The stream's table, swept up to the new rows, and these."""
        from waybill.staging.table_layout import TableLayout
        from waybill.tables import SweepPosition, SweepState, ensure_dedup_tables, ensure_tables
        from waybill.tables.commit import commit_snapshot
        from waybill.tables.dedup import sweep_properties
        from waybill.tables.progress import progress_text
        from waybill.tables.state import PROGRESS_PROPERTY

        stream = self.config.streams[_STREAM]
        main = ensure_tables(self.catalog, stream).main
        tables = ensure_dedup_tables(self.catalog, stream, main)
        progress = {PROGRESS_PROPERTY: progress_text(dict.fromkeys(self.topic_partitions, 1))}
        commit_snapshot(main, progress)
        main.refresh()
        swept = main.metadata.current_snapshot()
        assert swept is not None
        assert swept.sequence_number is not None
        newest = dict.fromkeys(self.topic_partitions, NOW_MS - 1)
        point = SweepPosition(str(main.metadata.table_uuid), swept.snapshot_id, swept.sequence_number)
        state = SweepState(point, newest, NOW_MS - 1 - WINDOW_MS)
        commit_snapshot(tables.unique, sweep_properties(state))
        with tempfile.TemporaryDirectory(dir=self.given.folder) as scratch:
            files = self.given.new.write(TableLayout.of(main), main.io, Path(scratch))
        commit_snapshot(main, progress, added=files)
        tables.unique.refresh()
        return tables.unique

    def _make_index(self, unique: Table) -> None:
        from waybill.dedup.index.manifest import IndexIdentity, Manifest, save_manifest
        from waybill.dedup.keys import hash_keys
        from waybill.names import key_index_prefix

        settings = self.config.streams[_STREAM].dedup
        assert settings is not None
        unique_uuid = str(unique.metadata.table_uuid)
        self.index = key_index_prefix(self.store.prefix, _STREAM, 1, unique_uuid)
        self.identity = IndexIdentity(unique_uuid, settings.key, settings.buckets)
        new = self.given.new
        hashes = hash_keys([new.id_texts(new.repeated)], unique.metadata.table_uuid.bytes)
        spans = hourly_runs(self.given.window.count, settings.buckets, settings.memory, self.unmerged_hours)
        self.runs_of_a_bucket = len(spans)
        runs: list[SortedRun] = []
        with ThreadPoolExecutor(2) as pool:
            for keys in _by_span(self.given.window.chunks(hashes.hi, hashes.lo), spans):
                runs += self._write_runs(pool, keys)
        snapshot = unique.metadata.current_snapshot()
        assert snapshot is not None
        self.manifest = Manifest(
            self.identity, snapshot.sequence_number or 0, NOW_MS - 1 - WINDOW_MS, tuple(runs), snapshot.snapshot_id
        )
        save_manifest(self.store, self.index, 0, self.manifest)

    def _write_runs(self, pool: ThreadPoolExecutor, numbered: tuple[int, Keys]) -> list[SortedRun]:
        """A run of each bucket, of these keys, the first of which has that number in the window."""
        from waybill.dedup.index.sorted_runs import IndexEntries, write_run

        first, keys = numbered
        order = np.argsort(keys.hi)
        numbers = first + order
        hi, lo, arrived_ms = keys.hi[order], keys.lo[order], keys.arrived_ms[order]
        tp, offset = (numbers % PARTITIONS).astype(np.int32), numbers // PARTITIONS
        bits = np.uint64(self.identity.buckets.bit_length() - 1)
        bounds = np.searchsorted(hi >> (np.uint64(64) - bits), np.arange(self.identity.buckets + 1, dtype=np.uint64))

        def write(bucket: int) -> SortedRun:
            part = slice(bounds[bucket], bounds[bucket + 1])
            run = IndexEntries(hi[part], lo[part], arrived_ms[part], tp[part], offset[part], self.topic_partitions)
            return write_run(self.store, self.index, bucket, (1, 1), run)

        return list(pool.map(write, np.flatnonzero(np.diff(bounds)).tolist()))

    # --- what is measured ---

    def run(self) -> Mapping[str, float]:
        from waybill.dedup.sweep import run_sweep
        from waybill.spark.execute import SparkSweep

        server = psutil.Process(int(os.environ[_PID])).cpu_times()
        report = run_sweep(self.config, _STREAM, SparkSweep(lambda: self.context), slots=2)
        after = psutil.Process(int(os.environ[_PID])).cpu_times()
        if report.duplicates != len(self.given.new.repeated):
            raise RuntimeError(f"{report.duplicates:,} duplicates were found, {len(self.given.new.repeated):,} are")
        return {
            "s3_cpu_seconds": after.user + after.system - server.user - server.system,
            "runs_of_a_bucket": self.runs_of_a_bucket,
            "index_read_bytes": report.index_read_bytes or 0,
            "worker_peak_bytes": report.peak_memory_bytes,
            **{f"{step}_seconds": spent for step, spent in report.seconds.items()},
            **{f"{kind}_task_seconds": spent for kind, spent in report.task_seconds.items()},
            **{f"{kind}_task_cpu_seconds": spent for kind, spent in report.task_cpu_seconds.items()},
        }

    # --- what is checked ---

    def kept_ids(self) -> pa.ChunkedArray:
        from waybill.connections import CatalogEndpoint, S3Endpoint, find_connection
        from waybill.names import unique_table_name
        from waybill.tables import open_catalog

        stream = self.config.streams[_STREAM]
        catalog = open_catalog(
            CatalogEndpoint.of(find_connection("iceberg_default")), S3Endpoint.of(find_connection("aws_default"))
        )
        found = catalog.load_table(unique_table_name(stream.table, 1)).scan(selected_fields=("message_id",)).to_arrow()
        catalog.close()
        return found.column("message_id").cast(pa.string())

    def stored_keys(self) -> int:
        from waybill.dedup.index.manifest import load_manifest

        found = load_manifest(self.store, self.index, self.identity).manifest
        return 0 if found is None else found.keys

    def index_bytes(self) -> int:
        return self.manifest.size_bytes + len(self.manifest.to_json(self.index))

    def read_elsewhere_bytes(self) -> int:
        """By the S3 server, but for what it was sent."""
        lines = Path(f"/proc/{os.environ[_PID]}/io").read_text().splitlines()
        read_bytes = next(int(line.split()[1]) for line in lines if line.startswith("rchar"))
        return read_bytes - sum(found.size_bytes for found in self._new_objects())

    def _new_objects(self) -> list[ListedObject]:
        return [found for found in self.store.list_objects("") if found.key not in self.objects]

    def reset(self) -> None:
        shutil.copyfile(self.saved, os.environ[_CATALOG])
        for found in self._new_objects():
            with suppress(Exception):
                self.store.remove(found.key)


def _by_span(chunks: Iterator[Keys], spans: list[tuple[int, int]]) -> Iterator[tuple[int, Keys]]:
    """The keys of each span, and the number of its first."""
    held: list[Keys] = []
    start = at = 0
    for keys in chunks:
        held.append(keys)
        at += len(keys.hi)
        while spans and at >= spans[0][1]:
            first, end = spans.pop(0)
            whole = Keys(*(np.concatenate(column) for column in zip(*held, strict=True)))
            yield first, Keys(*(column[first - start : end - start] for column in whole))
            held, start = [Keys(*(column[end - start :] for column in whole))], end
