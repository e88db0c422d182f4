"""Streams whose table tests fill directly and sweep, together with the oracle's results."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import oracle
import pyarrow as pa
from oracle import Row
from partition_scenes import Scene
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.table import Table

from waybill.config import names
from waybill.config.names import TopicPartition
from waybill.tables.dedup.execute import Execute, InThisProcess
from waybill.tables.dedup.sweep import run_sweep
from waybill.tables.dedup.sweep_report import SweepReport
from waybill.tables.iceberg import ensure_tables, load_dedup_tables
from waybill.tables.iceberg.dedup import DedupTables, SweepState, read_sweep_state
from waybill.tables.iceberg.progress import progress_text, read_progress
from waybill.tables.iceberg.state import PROGRESS_PROPERTY
from waybill.tables.staging.driver import RunOutcome

START_MS = 1_600_000_000_000
_US = 1000

Found = tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]
"""Rows of the unique table and of the duplicates table, in a form that can be compared."""


class Killed(Exception):
    """Ends the driver at this point, as if it were killed."""


@dataclass
class SweptScene:
    """A stream, the rows appended to its table, and the oracle's results for them."""

    scene: Scene
    key: tuple[str, ...]
    window_ms: int
    now_ms: int = START_MS
    waiting: list[Row] = field(default_factory=list)
    """Rows of the table that are in no plan yet."""
    planned: list[Row] | None = None
    """Rows of a plan that is not committed, and the time of the plan."""
    planned_at_ms: int = 0
    state: oracle.State = field(default_factory=oracle.State)
    kept: list[oracle.Kept] = field(default_factory=list)
    duplicates: list[oracle.Duplicate] = field(default_factory=list)

    @property
    def main(self) -> Table:
        return ensure_tables(self.scene.catalog, self.scene.stream).main

    @property
    def tables(self) -> DedupTables:
        found = load_dedup_tables(self.scene.catalog, self.scene.stream)
        assert found is not None
        return found

    @property
    def index(self) -> str:
        """Return the prefix of the object keys of the index."""
        unique = str(self.tables.unique.metadata.table_uuid)
        return names.key_index_prefix(self.scene.store.prefix, "flights", self.scene.stream.generation, unique)

    def append(self, rows: Sequence[Row], files: int = 1) -> None:
        """Append rows to the stream's table in one snapshot, as a partition run or a quarantine retry does."""
        main = self.main
        progress = dict(read_progress(main.metadata, "main"))
        for row in rows:
            progress[row.tp] = max(progress.get(row.tp, 0), row.offset + 1)
        schema = schema_to_pyarrow(main.schema(), include_field_ids=False)
        self.append_tables(
            [pa.Table.from_pylist(list(map(self._row, rows[n::files])), schema=schema) for n in range(files)], progress
        )
        self.waiting += rows

    def append_tables(self, made: Sequence[pa.Table], progress: Mapping[TopicPartition, int]) -> None:
        """Append tables, a file each, in one snapshot; the oracle does not count their rows."""
        main = self.main
        with main.transaction() as transaction:
            update = transaction.update_snapshot({PROGRESS_PROPERTY: progress_text(progress)})
            with update.fast_append() as snapshot:
                for table in made:
                    for file in _dataframe_to_data_files(transaction.table_metadata, table, main.io):
                        snapshot.append_data_file(file)

    def _row(self, row: Row) -> dict[str, Any]:
        values = dict(zip(self.key, row.key_values, strict=True))
        time = row.kafka_timestamp_ms
        return {
            "topic": row.tp.topic,
            "partition": row.tp.partition,
            "offset": row.offset,
            "kafka_timestamp": None if time is None else datetime.fromtimestamp(time / 1000, UTC),
            "key": None,
            "headers": [],
            "value": b"value",
            "event_time": datetime.fromtimestamp(row.event_time_ms / 1000, UTC),
            "message_id": f"{row.tp}@{row.offset}",
            "generation": self.scene.stream.generation,
            **values,
        }

    def sweep(
        self, execute: Execute | None = None, on_step: Callable[[str], None] = lambda _: None, **options: Any
    ) -> SweepReport:
        """Run one sweep, and the oracle's sweep once it is committed."""
        began_at = datetime.fromtimestamp(self.now_ms / 1000, UTC)
        if self.planned is None:
            self.planned, self.waiting, self.planned_at_ms = self.waiting, [], self.now_ms
        report = run_sweep(
            self.scene.config, "flights", execute or InThisProcess(), now=lambda: began_at, on_step=on_step, **options
        )
        if report.outcome is RunOutcome.NOTHING_NEW:
            self.planned, self.waiting = None, self.planned
        else:
            self.sweep_by_oracle()
        return report

    def sweep_killed(self, step: str, **options: Any) -> bool:
        """Run a sweep whose driver is killed after a step. Return False if it ended without reaching the step."""
        reached = False

        def die(done: str) -> None:
            nonlocal reached
            if done == step:
                reached = True
                raise Killed(step)

        try:
            self.sweep(on_step=die, **options)
        except Killed:
            if step in {"committed", "index_saved"}:
                self.sweep_by_oracle()
        return reached

    def take_plan_of_other_process(self, at_ms: int | None = None) -> None:
        """Record that another process plans, or has planned, all waiting rows."""
        assert self.planned is None
        self.planned, self.waiting, self.planned_at_ms = self.waiting, [], at_ms or self.now_ms

    def sweep_until_current(self, **options: Any) -> None:
        while (report := self.sweep(**options)).resumed or report.more:
            pass

    def sweep_by_oracle(self) -> None:
        """Run the oracle's sweep of the planned rows."""
        if self.planned is None:
            return
        swept = oracle.sweep(
            self.state, self.planned, high_ms=self.planned_at_ms, window_ms=self.window_ms, key_columns=self.key
        )
        self.planned, self.state = None, swept.state
        self.kept += swept.kept
        self.duplicates += swept.duplicates

    def expected(self) -> Found:
        """Return the oracle's rows."""
        return (
            sorted((str(k.row.tp), k.row.offset, k.arrived_ms) for k in self.kept),
            sorted(
                (str(d.row.tp), d.row.offset, d.arrived_ms, str(d.first.row.tp), d.first.row.offset, d.first.arrived_ms)
                for d in self.duplicates
            ),
        )

    def found(self) -> Found:
        """Return the rows of the tables."""
        unique, duplicates = self.tables.unique.scan().to_arrow(), self.tables.duplicates.scan().to_arrow()
        return (
            sorted(zip(*_place(unique, ""), strict=True)),
            sorted(zip(*_place(duplicates, ""), *_place(duplicates, "first_"), strict=True)),
        )

    @property
    def found_state(self) -> SweepState:
        return read_sweep_state(self.tables.unique.metadata, "unique")

    def check(self) -> None:
        """Check that tables and state equal the oracle's."""
        assert self.found() == self.expected()
        state = self.found_state
        assert (dict(state.watermarks), state.horizon_ms) == (dict(self.state.watermarks), self.state.horizon_ms)


def _place(rows: pa.Table, which: str) -> tuple[list[str], list[int], list[int]]:
    """Return topic-partition, offset and arrival, of the row itself or of the first one."""
    topics, partitions = rows.column(f"{which}topic").to_pylist(), rows.column(f"{which}partition").to_pylist()
    arrived = rows.column(f"{which}arrived_at").cast(pa.int64()).to_pylist()
    return (
        [f"{topic}/{partition}" for topic, partition in zip(topics, partitions, strict=True)],
        rows.column(f"{which}offset").to_pylist(),
        [us // _US for us in arrived],
    )


def compact(table: Table) -> None:
    """Replace all files by one for each partition, in one snapshot, as a compaction does."""
    rows, old = table.scan().to_arrow(), [task.file for task in table.scan().plan_files()]
    if not old:
        return
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as replace:
        for file in old:
            replace.delete_data_file(file)
        for file in _dataframe_to_data_files(transaction.table_metadata, rows, table.io):
            replace.append_data_file(file)


class RandomRows:
    """Generates messages of a few topic-partitions, many of them repeated: late, early, with wrong clocks."""

    def __init__(self, rng: random.Random, key: tuple[str, ...], window_ms: int) -> None:
        self._rng, self._key, self._window_ms = rng, key, window_ms
        self._tps = [TopicPartition(topic, n) for topic in ("flights", "flights.b") for n in range(2)]
        self._offsets = dict.fromkeys(self._tps, 0)
        self._held_back: list[Row] = []

    def batch(self, now_ms: int, most: int = 40) -> list[Row]:
        """Return some new rows, and some that were held back, as the quarantine does."""
        rng = self._rng
        made = [self._row(now_ms) for _ in range(rng.randrange(1, most))]
        back = [row for row in self._held_back if rng.random() < 0.3]
        self._held_back = [row for row in self._held_back if row not in back]
        held = [row for row in made if rng.random() < 0.1]
        self._held_back += held
        return [row for row in made if row not in held] + back

    def _row(self, now_ms: int) -> Row:
        rng = self._rng
        tp = rng.choice(self._tps)
        offset = self._offsets[tp]
        self._offsets[tp] += rng.choice((1, 1, 1, 3))
        kind = rng.randrange(20)
        if kind < 2:  # a wrong clock
            time: int | None = now_ms + rng.choice((-1, 1)) * rng.randrange(100 * self._window_ms)
        elif kind == 2:
            time = None
        else:
            time = now_ms - rng.randrange(self._window_ms)
        values = tuple(self._value(column, tp, offset) for column in self._key)
        return Row(tp, offset, time, now_ms - rng.randrange(self._window_ms // 10), values)

    def _value(self, column: str, tp: TopicPartition, offset: int) -> str | None:
        rng = self._rng
        kind = rng.randrange(10)
        if column == "message_id":
            return f"{tp}@{offset}" if kind == 0 else f"id-{rng.randrange(30)}"
        return None if kind == 0 else f"{column}-{rng.randrange(6)}"


def damage_index(scene: SweptScene, rng: random.Random) -> str:
    """Remove or damage objects of the index. Return what was done."""
    store = scene.scene.store
    keys = list(store.keys(scene.index))
    manifests = [key for key in keys if names.key_index_version_of(key) is not None]
    what = rng.choice(("all gone", "manifests gone", "newest manifest gone", "file gone", "file cut", "byte flipped"))
    if what == "all gone":
        gone = keys
    elif what == "manifests gone":
        gone = manifests
    elif what == "newest manifest gone":
        gone = manifests[-1:]
    else:
        gone = []
        for key in rng.sample(keys, min(3, len(keys))):
            _damage(store, key, what, rng)
    for key in gone:
        store.remove(key)
    return what


def _damage(store: Any, key: str, what: str, rng: random.Random) -> None:
    content = bytearray(store.read(key))
    store.remove(key)
    if what == "file gone":
        return
    if what == "file cut":
        del content[rng.randrange(len(content)) :]
    else:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    store.create_if_absent(key, bytes(content))
