"""Kept rows and duplicates compared with SQL: DuckDB reads the Parquet files of the tables."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from oracle import Row
from partition_scenes import Scene
from pyiceberg.table import Table
from sweep_scenes import START_MS, RandomRows, SweptScene, compact

from waybill.config.names import TopicPartition

pytestmark = pytest.mark.integration

MakeScene = Callable[..., Scene]
WINDOW_MS = 3_600_000
BATCH_MS = 300_000
BATCHES = 8
"""All batches together are shorter than a window."""
TPS = [TopicPartition(topic, number) for topic in ("flights", "flights.b") for number in range(2)]

_READ = """
CREATE VIEW main AS SELECT * FROM read_parquet($main, union_by_name = true);
CREATE VIEW kept AS SELECT * FROM read_parquet($unique, union_by_name = true);
CREATE VIEW dropped AS SELECT * FROM read_parquet($duplicates, union_by_name = true);
"""
# The first row of each key: by sweep; within a sweep by arrival, and along a topic-partition by offset.
_EXPECTED = f"""
CREATE TABLE expected AS
WITH rows AS (
    SELECT topic, partition, "offset", kafka_timestamp AS arrived_at,
           nullif(message_id, topic || '/' || partition || '@' || "offset") AS key,
           (SELECT sweep FROM sweeps WHERE batch = (epoch_ms(kafka_timestamp) - {START_MS}) // {BATCH_MS}) AS sweep
    FROM main
), placed AS (
    SELECT *, max(arrived_at) OVER (PARTITION BY sweep, key, topic, partition ORDER BY "offset") AS place FROM rows
)
SELECT *, key IS NULL OR row_number() OVER compared = 1 AS is_kept, first_value(topic) OVER compared AS first_topic,
       first_value(partition) OVER compared AS first_partition, first_value("offset") OVER compared AS first_offset,
       first_value(arrived_at) OVER compared AS first_arrived_at
FROM placed WINDOW compared AS (PARTITION BY key ORDER BY sweep, place, topic, partition, "offset");
"""
_KEPT = 'topic, partition, "offset", arrived_at'
_DROPPED = f"{_KEPT}, first_topic, first_partition, first_offset, first_arrived_at"


@pytest.fixture
def swept(make_scene: MakeScene) -> SweptScene:
    settings = {"window": f"{WINDOW_MS // 1000}s", "floor": "1s", "buckets": 4}
    return SweptScene(make_scene(dedup=settings, columns={"device": "string"}), ("message_id",), WINDOW_MS)


def open_files(swept: SweptScene, to: Path) -> duckdb.DuckDBPyConnection:
    """Open the files of the three tables as views."""
    tables = {"main": swept.main, "unique": swept.tables.unique, "duplicates": swept.tables.duplicates}
    database = duckdb.connect()
    for statement in _READ.strip().splitlines():
        name = statement[statement.index("$") + 1 : statement.index(",")]
        files = ", ".join(f"'{path}'" for path in _copied(swept, tables[name], to / name))
        database.execute(statement.replace(f"${name}", f"[{files}]"))
    return database


def _copied(swept: SweptScene, table: Table, to: Path) -> list[Path]:
    to.mkdir()
    store = swept.scene.store
    paths = []
    for number, task in enumerate(table.scan().plan_files()):
        paths.append(to / f"{number}.parquet")
        paths[-1].write_bytes(store.read(task.file.file_path.removeprefix(f"s3://{store.bucket}/")))
    return paths


def check_no_rows(database: duckdb.DuckDBPyConnection, query: str) -> None:
    found: list[Any] = database.execute(query).fetchall()
    assert not found, f"{len(found)}, the first of them {found[:3]}: {query}"


def check_equal_rows(database: duckdb.DuckDBPyConnection, first: str, second: str) -> None:
    """Check that two queries return the same rows, each as many times."""
    check_no_rows(database, f"({first}) EXCEPT ALL ({second})")
    check_no_rows(database, f"({second}) EXCEPT ALL ({first})")


def messages(rng: random.Random, batch: int, offsets: dict[TopicPartition, int]) -> list[Row]:
    """Return messages of one batch: out of order, repeated, with an assigned id, or with text like one."""
    made = []
    for _ in range(rng.randrange(100, 200)):
        tp = rng.choice(TPS)
        offset = offsets[tp] = offsets.get(tp, -1) + 1
        ids = [f"id-{rng.randrange(400)}"] * 8 + [f"{tp}@{offset}", f"{tp}@{offset + rng.randrange(1, 9)}"]
        time = START_MS + batch * BATCH_MS + rng.choice((rng.randrange(BATCH_MS), 7))  # many with the same time
        made.append(Row(tp, offset, time, START_MS, (rng.choice(ids),)))
    return made


def test_kept_rows_and_duplicates_of_one_window_equal_those_of_sql(swept: SweptScene, tmp_path: Path) -> None:
    rng = random.Random(7)
    swept.now_ms = START_MS + WINDOW_MS
    offsets: dict[TopicPartition, int] = {}
    sweeps, sweep = [], 0
    for batch in range(BATCHES):
        sweeps.append((batch, sweep))
        swept.append(messages(rng, batch, offsets), files=rng.randrange(1, 4))
        if batch in {0, 2, 3, 6}:
            swept.sweep(slots=rng.choice((1, 8)))
            sweep += 1
        if batch in {3, 5}:
            compact(swept.tables.unique)
    swept.sweep()
    with open_files(swept, tmp_path) as database:
        database.execute(f"CREATE TABLE sweeps AS FROM (VALUES {str(sweeps)[1:-1]}) AS s (batch, sweep)")
        database.execute(_EXPECTED)
        check_equal_rows(database, f"SELECT {_KEPT} FROM kept", f"SELECT {_KEPT} FROM expected WHERE is_kept")
        check_equal_rows(
            database, f"SELECT {_DROPPED} FROM dropped", f"SELECT {_DROPPED} FROM expected WHERE NOT is_kept"
        )
        (counts,) = database.execute("SELECT count(*), count(*) FILTER (NOT is_kept) FROM expected").fetchall()
    assert counts[0] == sum(offsets.values()) + len(offsets)
    assert counts[1] > counts[0] // 4


def test_invariants_hold_over_many_windows_by_sql(swept: SweptScene, tmp_path: Path) -> None:
    """With wrong clocks and late rows."""
    rng = random.Random(11)
    rows = RandomRows(rng, swept.key, WINDOW_MS)
    for _ in range(8):
        swept.now_ms += rng.randrange(WINDOW_MS)
        swept.append(rows.batch(swept.now_ms, most=60), files=2)
        if rng.random() < 0.7:
            swept.sweep()
    swept.sweep()
    place = 'topic, partition, "offset"'
    with open_files(swept, tmp_path) as database:
        swept_rows = f"SELECT {place}, message_id FROM kept UNION ALL SELECT {place}, message_id FROM dropped"
        check_equal_rows(database, f"SELECT {place}, message_id FROM main", swept_rows)
        check_no_rows(
            database,
            f"SELECT * FROM kept WHERE message_id <> topic || '/' || partition || '@' || \"offset\" QUALIFY "
            f"epoch_ms(arrived_at) - epoch_ms(lag(arrived_at) OVER (PARTITION BY message_id ORDER BY arrived_at)) "
            f"<= {WINDOW_MS}",
        )
        check_no_rows(
            database,
            f"SELECT * FROM dropped ANTI JOIN kept ON first_topic = kept.topic AND first_partition = kept.partition "
            f'AND first_offset = kept."offset" AND first_arrived_at = kept.arrived_at '
            f"AND dropped.message_id = kept.message_id "
            f"AND epoch_ms(dropped.arrived_at) - epoch_ms(kept.arrived_at) <= {WINDOW_MS}",
        )
        (counts,) = database.execute("SELECT (SELECT count(*) FROM kept), (SELECT count(*) FROM dropped)").fetchall()
    assert min(counts) > 20
