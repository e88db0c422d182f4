"""Waybill's side of bench/dedup.py: the real sweep on Spark's workers, over real tables.

Its files are on the local disk as those of the alternatives, but behind an S3 server (versitygw). The server's CPU
seconds are reported separately, and what it reads from the disk counts as read.

The window's index is written as hourly sweeps would have left it: `hourly_runs` simulates four weeks of sweeps with
numbers alone, and asks `waybill.tables.dedup.index.merge` every hour what to merge. `write_run` writes the resulting
runs.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pyarrow as pa
from dedup_inputs import HOUR_MS, NOW_MS, PARTITIONS, TOPIC, WINDOW_MS, Inputs, Keys
from services import CATALOG_FILE, S3_PID, stream_config

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from waybill.services.store import ListedObject
    from waybill.tables.dedup.index.sorted_runs import SortedRun

_STREAM = "bench"
_HOURS = WINDOW_MS // HOUR_MS


class Waybill:
    """A sweep. With `unmerged_hours` the index holds the newest runs as the sweeps wrote them."""

    def __init__(self, inputs: Inputs, unmerged_hours: int = 0) -> None:
        self.inputs = inputs
        self.unmerged_hours = unmerged_hours
        self.cleanup = ExitStack()
        self.config = stream_config(TOPIC, stream=_STREAM, table=f"bench.t{uuid.uuid4().hex[:12]}", dedup={})

    # --- session ---

    def start(self) -> None:
        """Start the session as the DAG's operator and spark_jobs/dedup.py do."""
        from waybill.tables.spark import daemon
        from waybill.tables.spark.daemon import forked_daemon
        from waybill.tables.spark.job import with_brief_jvm
        from waybill.tables.spark.session import connection_ids, spark_context

        os.environ.update(with_brief_jvm(os.environ))
        os.environ["SPARK_LOCAL_DIRS"] = str(self.inputs.folder)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        environment = self.cleanup.enter_context(forked_daemon(daemon.warm_up_dedup, daemon.run))
        self.context = spark_context("bench-dedup", connection_ids(self.config), environment)
        self.cleanup.callback(self.context.stop)
        self.context.parallelize(range(2), 2).map(lambda number: number).collect()

    def close(self) -> None:
        self.cleanup.close()

    # --- the window ---

    def prepare(self) -> None:
        """Write the tables and the index, and remember their state for `reset`."""
        from waybill.config.names import TopicPartition
        from waybill.services.store import Store

        self.store = Store.of(self.config.storage)
        self.topic_partitions = tuple(TopicPartition(TOPIC, number) for number in range(PARTITIONS))
        catalog = _open_catalog()
        self._write_index(self._write_tables(catalog))
        catalog.close()
        self.saved_catalog = self.inputs.folder / "catalog.db"
        shutil.copyfile(os.environ[CATALOG_FILE], self.saved_catalog)
        self.saved_keys = {listed.key for listed in self.store.list_objects("")}

    def _write_tables(self, catalog: Catalog) -> Table:
        """Create the stream's table with the new rows, swept up to them; return the unique table."""
        from waybill.tables.iceberg import SweepPosition, SweepState, ensure_dedup_tables, ensure_tables
        from waybill.tables.iceberg.commit import commit_snapshot
        from waybill.tables.iceberg.dedup import sweep_properties
        from waybill.tables.iceberg.progress import progress_text
        from waybill.tables.iceberg.state import PROGRESS_PROPERTY
        from waybill.tables.staging.table_layout import TableLayout

        stream = self.config.streams[_STREAM]
        main = ensure_tables(catalog, stream).main
        unique = ensure_dedup_tables(catalog, stream, main).unique
        progress = {PROGRESS_PROPERTY: progress_text(dict.fromkeys(self.topic_partitions, 1))}
        commit_snapshot(main, progress)
        main.refresh()
        swept = main.metadata.current_snapshot()
        position = SweepPosition(str(main.metadata.table_uuid), swept.snapshot_id, swept.sequence_number)
        newest = dict.fromkeys(self.topic_partitions, NOW_MS - 1)
        commit_snapshot(unique, sweep_properties(SweepState(position, newest, NOW_MS - 1 - WINDOW_MS)))
        with tempfile.TemporaryDirectory(dir=self.inputs.folder) as scratch:
            files = self.inputs.new.write(TableLayout.of(main), main.io, Path(scratch))
        commit_snapshot(main, progress, added=files)
        unique.refresh()
        return unique

    def _write_index(self, unique: Table) -> None:
        """Write the window's keys as the sorted runs of an index of the unique table."""
        from waybill.config.names import key_index_prefix
        from waybill.tables.dedup.index.manifest import IndexIdentity, Manifest, save_manifest
        from waybill.tables.dedup.keys import hash_keys

        settings = self.config.streams[_STREAM].dedup
        unique_uuid = unique.metadata.table_uuid
        self.index = key_index_prefix(self.store.prefix, _STREAM, 1, str(unique_uuid))
        self.identity = IndexIdentity(str(unique_uuid), settings.key, settings.buckets)
        new = self.inputs.new
        hashes = hash_keys([new.id_texts(new.repeated)], unique_uuid.bytes)
        ranges = hourly_runs(self.inputs.window.count, settings.buckets, settings.memory, self.unmerged_hours)
        self.runs_of_a_bucket = len(ranges)
        runs: list[SortedRun] = []
        with ThreadPoolExecutor(2) as pool:
            for first, keys in _cut(self.inputs.window.chunks(hashes.hi, hashes.lo), ranges):
                runs += self._write_runs(pool, first, keys)
        snapshot = unique.metadata.current_snapshot()
        self.manifest = Manifest(
            self.identity, snapshot.sequence_number or 0, NOW_MS - 1 - WINDOW_MS, tuple(runs), snapshot.snapshot_id
        )
        save_manifest(self.store, self.index, 0, self.manifest)

    def _write_runs(self, pool: ThreadPoolExecutor, first: int, keys: Keys) -> list[SortedRun]:
        """Write one run for each bucket; `first` is the number in the window of the first of these keys."""
        from waybill.tables.dedup.index.run_file import IndexEntries, tail_of
        from waybill.tables.dedup.index.sorted_runs import write_run

        order = np.argsort(keys.hi)
        numbers = first + order
        hi, tail, arrived_ms = keys.hi[order], tail_of(keys.lo[order]), keys.arrived_ms[order]
        tp, offset = (numbers % PARTITIONS).astype(np.int32), numbers // PARTITIONS
        bits = np.uint64(self.identity.buckets.bit_length() - 1)
        bounds = np.searchsorted(hi >> (np.uint64(64) - bits), np.arange(self.identity.buckets + 1, dtype=np.uint64))

        def write(bucket: int) -> SortedRun:
            part = slice(bounds[bucket], bounds[bucket + 1])
            columns = (column[part] for column in (hi, tail, arrived_ms, tp, offset))
            entries = IndexEntries(*columns, self.topic_partitions)
            return write_run(self.store, self.index, bucket, (1, 1), entries)

        return list(pool.map(write, np.flatnonzero(np.diff(bounds)).tolist()))

    # --- one run ---

    def run(self) -> Mapping[str, float]:
        from waybill.tables.dedup.sweep import run_sweep
        from waybill.tables.spark.execute import SparkSweep

        server = psutil.Process(int(os.environ[S3_PID]))
        before = server.cpu_times()
        report = run_sweep(self.config, _STREAM, SparkSweep(lambda: self.context), slots=2)
        after = server.cpu_times()
        if report.duplicates != len(self.inputs.new.repeated):
            raise RuntimeError(
                f"the sweep reports {report.duplicates:,} of {len(self.inputs.new.repeated):,} duplicates"
            )
        return {
            "s3_cpu_seconds": after.user + after.system - before.user - before.system,
            "runs_of_a_bucket": self.runs_of_a_bucket,
            "index_read_bytes": report.index_read_bytes or 0,
            "worker_peak_bytes": report.peak_memory_bytes,
            **{f"{step}_seconds": seconds for step, seconds in report.seconds.items()},
            **{f"{kind}_task_seconds": seconds for kind, seconds in report.task_seconds.items()},
            **{f"{kind}_task_cpu_seconds": seconds for kind, seconds in report.task_cpu_seconds.items()},
        }

    def kept_ids(self) -> pa.ChunkedArray:
        from waybill.config.names import unique_table_name

        catalog = _open_catalog()
        unique = catalog.load_table(unique_table_name(self.config.streams[_STREAM].table))
        rows = unique.scan(selected_fields=("message_id",)).to_arrow()
        catalog.close()
        return rows.column("message_id").cast(pa.string())

    def stored_keys(self) -> int:
        from waybill.tables.dedup.index.manifest import load_manifest

        manifest = load_manifest(self.store, self.index, self.identity).manifest
        return 0 if manifest is None else manifest.keys

    def index_bytes(self) -> int:
        return self.manifest.size_bytes + len(self.manifest.to_json(self.index))

    def server_read_bytes(self) -> int:
        """Return what the S3 server has read, without the uploads that it received."""
        read_bytes = psutil.Process(int(os.environ[S3_PID])).io_counters().read_chars
        return int(read_bytes) - sum(listed.size_bytes for listed in self._new_objects())

    def _new_objects(self) -> list[ListedObject]:
        return [listed for listed in self.store.list_objects("") if listed.key not in self.saved_keys]

    def reset(self) -> None:
        shutil.copyfile(self.saved_catalog, os.environ[CATALOG_FILE])
        for listed in self._new_objects():
            with suppress(Exception):
                self.store.remove(listed.key)


def hourly_runs(count: int, buckets: int, memory_bytes: int, unmerged_hours: int = 0) -> list[tuple[int, int]]:
    """Return the ranges of keys [first, end) that each bucket has in one run, in order, for a window of `count` keys.

    Simulates one sweep an hour for four weeks, each followed by the merges that the policy chooses, except after the
    last `unmerged_hours`. All buckets are alike.
    """
    from waybill.tables.dedup.index.merge import MergePolicy, choose_merges
    from waybill.tables.dedup.index.sorted_runs import SortedRun

    def new_run(first: int, end: int, sequence: int, keys: int, min_ms: int, max_ms: int) -> SortedRun:
        path = f"{first}-{end}"
        ranges[path] = (first, end)
        return SortedRun(0, sequence, sequence, keys, min_ms, max_ms, path, 0, 0, 0, "", 0, 0)

    policy = MergePolicy.of(WINDOW_MS, memory_bytes)
    runs: list[SortedRun] = []
    ranges: dict[str, tuple[int, int]] = {}
    for hour in range(_HOURS):
        first, end = count * hour // _HOURS, count * (hour + 1) // _HOURS
        last_ms = NOW_MS - (_HOURS - hour - 1) * HOUR_MS - 1
        runs.append(new_run(first, end, hour, max((end - first) // buckets, 1), last_ms - HOUR_MS + 1, last_ms))
        while hour < _HOURS - unmerged_hours and (groups := choose_merges(runs, policy)):
            for group in groups:
                merged = new_run(
                    min(ranges[run.path][0] for run in group),
                    max(ranges[run.path][1] for run in group),
                    group[0].first_sequence,
                    sum(run.keys for run in group),
                    min(run.min_arrived_ms for run in group),
                    max(run.max_arrived_ms for run in group),
                )
                merged = replace(merged, last_sequence=max(run.last_sequence for run in group))
                runs = [run for run in runs if run not in group] + [merged]
    return sorted(ranges[run.path] for run in runs)


def _cut(chunks: Iterator[Keys], ranges: list[tuple[int, int]]) -> Iterator[tuple[int, Keys]]:
    """Yield the first number and the keys of each range, which follow one another without gaps."""
    pending: list[Keys] = []
    start = read = 0
    for keys in chunks:
        pending.append(keys)
        read += len(keys.hi)
        while ranges and read >= ranges[0][1]:
            first, end = ranges.pop(0)
            joined = Keys(*(np.concatenate(column) for column in zip(*pending, strict=True)))
            yield first, Keys(*(column[first - start : end - start] for column in joined))
            pending, start = [Keys(*(column[end - start :] for column in joined))], end


def _open_catalog() -> Catalog:
    from waybill.config.connections import CatalogEndpoint, S3Endpoint, find_connection
    from waybill.tables.iceberg import open_catalog

    iceberg, s3 = find_connection("iceberg_default"), find_connection("aws_default")
    return open_catalog(CatalogEndpoint.of(iceberg), S3Endpoint.of(s3))
