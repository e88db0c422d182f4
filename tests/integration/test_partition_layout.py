"""Tables partitioned by further columns, as other engines read them; event times of wrong clocks; lateness."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_avro
import duckdb_extension_httpfs
import duckdb_extension_iceberg
import pytest
import yaml
from partition_scenes import Scene, event, in_this_process
from pyiceberg.expressions import BooleanExpression, EqualTo, IsNull
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from waybill.base.errors import ConfigError
from waybill.config.connections import CatalogEndpoint, S3Endpoint, find_connection
from waybill.config.names import TopicPartition
from waybill.interfaces.cli.app import app
from waybill.records.batches.encode import Record
from waybill.tables.iceberg import read_watermarks
from waybill.tables.partition.lateness import LatenessHistory
from waybill.tables.partition.partition_plan import Task
from waybill.tables.partition.tasks import Job, TaskResult
from waybill.tables.spark.catalog import spark_catalog
from waybill.tables.spark.iceberg import attach_catalog

pytestmark = pytest.mark.integration

TP0, TP1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
HOUR_MS = 3_600_000
MakeScene = Callable[..., Scene]
BY = ["hour", "carrier", "bucket(4, message_id)", "truncate(2, origin)"]
CARRIERS = [None, "", "AA", "UA", "a/b c=%20&?#é"]
ORIGINS = ["JFK", "JAX", "LGA", "EWR", None]


class Killed(BaseException):
    """Raised by a test to end the driver at a step."""


def flight(offset: int) -> Record:
    columns = {"carrier": CARRIERS[offset % 5], "origin": ORIGINS[offset // 5 % 5]}
    value = {"id": f"id-{offset}", "at": offset % 3 * HOUR_MS} | {k: v for k, v in columns.items() if v is not None}
    return Record(offset, 7 * HOUR_MS, b"key", json.dumps(value).encode())


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    """200 messages in two objects, by hour, carrier, bucket and airport."""
    made = make_scene(partition_by=BY, columns={"carrier": "string", "origin": "string"})
    made.put(TP0, [flight(n) for n in range(120)])
    made.put(TP1, [flight(n) for n in range(200, 280)])
    return made


def rows_where(scene: Scene, condition: str | BooleanExpression) -> list[tuple[int, int]]:
    rows = scene.table.scan(condition, selected_fields=("partition", "offset")).to_arrow().to_pylist()
    return sorted((row["partition"], row["offset"]) for row in rows)


def expected_where(chosen: Callable[[dict[str, Any]], bool]) -> list[tuple[int, int]]:
    flights = [(0, n) for n in range(120)] + [(1, n) for n in range(200, 280)]
    return [(partition, n) for partition, n in flights if chosen(json.loads(flight(n).value or b""))]


def test_every_engine_reads_the_rows_and_prunes_partitions(scene: Scene, spark: SparkSession) -> None:
    assert scene.run().rows == 200
    scene.check_exactly_once()
    scene.check_no_file_is_left_over()
    files = [task.file for task in scene.table.scan().plan_files()]
    values = {tuple(file.partition[at] for at in range(4)) for file in files}
    assert {carrier for _, carrier, _, _ in values} == set(CARRIERS)
    assert {airport for *_, airport in values} == {None, "JF", "JA", "LG", "EW"}
    _check_pyiceberg(scene, values)
    _check_duckdb(scene)
    _check_spark(scene, spark)


def _check_pyiceberg(scene: Scene, values: set[tuple[Any, ...]]) -> None:
    for condition, at, of_partition, chosen in (
        (EqualTo("carrier", "AA"), 1, "AA", lambda m: m.get("carrier") == "AA"),
        (EqualTo("carrier", ""), 1, "", lambda m: m.get("carrier") == ""),
        (EqualTo("carrier", CARRIERS[4]), 1, CARRIERS[4], lambda m: m.get("carrier") == CARRIERS[4]),
        (IsNull("carrier"), 1, None, lambda m: "carrier" not in m),
        (EqualTo("origin", "JFK"), 3, "JF", lambda m: m.get("origin") == "JFK"),
    ):
        assert rows_where(scene, condition) == expected_where(chosen)
        planned = {tuple(t.file.partition[i] for i in range(4)) for t in scene.table.scan(condition).plan_files()}
        assert planned <= {value for value in values if value[at] == of_partition}
    assert rows_where(scene, EqualTo("message_id", "id-205")) == [(1, 205)]
    buckets = {task.file.partition[2] for task in scene.table.scan(EqualTo("message_id", "id-205")).plan_files()}
    assert len(buckets) == 1


def _check_duckdb(scene: Scene) -> None:
    s3 = S3Endpoint.of(find_connection("aws_default"))
    assert s3.endpoint_url is not None
    with duckdb.connect() as database:
        for module in (duckdb_extension_avro, duckdb_extension_httpfs, duckdb_extension_iceberg):
            (file,) = Path(str(module.__file__)).parent.rglob("*.duckdb_extension")
            database.execute(f"LOAD '{file}'")
        database.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{s3.access_key}', SECRET '{s3.secret_key}', REGION '{s3.region}', "
            f"ENDPOINT '{s3.endpoint_url.removeprefix('http://')}', URL_STYLE 'path', USE_SSL false)"
        )
        query = 'SELECT "partition", "offset" FROM iceberg_scan(?) WHERE {} ORDER BY ALL'
        for condition, chosen in (
            ("true", lambda _: True),
            ("carrier = 'AA'", lambda m: m.get("carrier") == "AA"),
            ("carrier = 'a/b c=%20&?#é'", lambda m: m.get("carrier") == CARRIERS[4]),
            ("carrier IS NULL", lambda m: "carrier" not in m),
            ("origin = 'JFK' AND carrier = ''", lambda m: m.get("origin") == "JFK" and m.get("carrier") == ""),
        ):
            found = database.execute(query.format(condition), [scene.table.metadata_location]).fetchall()
            assert found == expected_where(chosen), condition


def _check_spark(scene: Scene, spark: SparkSession) -> None:
    """Assert that Iceberg's Java library computes the same partition values for each row and each file."""
    catalog = spark_catalog(
        CatalogEndpoint.of(find_connection("iceberg_default")), S3Endpoint.of(find_connection("aws_default"))
    )
    session = spark.newSession()
    attach_catalog(session, catalog)
    table, functions = f"{catalog.name}.{'.'.join(scene.table.name())}", f"{catalog.name}.system"
    (row,) = session.sql(
        f"""SELECT count(*) AS n, count_if(
                NOT (_partition.event_time_hour <=> {functions}.hours(event_time))
                OR NOT (_partition.carrier <=> carrier)
                OR NOT (_partition.message_id_bucket <=> {functions}.bucket(4, message_id))
                OR NOT (_partition.origin_trunc <=> {functions}.truncate(2, origin))) AS wrong FROM {table}"""
    ).collect()
    assert (row["n"], row["wrong"]) == (200, 0)
    query = f"SELECT partition, offset FROM {table} WHERE carrier = 'a/b c=%20&?#é' AND origin = 'JFK' ORDER BY 1, 2"
    assert [tuple(r) for r in session.sql(query).collect()] == expected_where(
        lambda m: m.get("carrier") == CARRIERS[4] and m.get("origin") == "JFK"
    )


def test_a_retry_commits_the_recorded_partitions_without_reading_messages(scene: Scene) -> None:
    """No column statistics determine a bucket, so it is recorded with the file."""

    def die(step: str) -> None:
        if step == "staged":
            raise Killed(step)

    def refuse(job: Job, tasks: Sequence[Task]) -> list[TaskResult]:
        raise AssertionError("the tasks were executed before")

    with pytest.raises(Killed):
        scene.run(in_this_process, die)
    report = scene.run(refuse)
    assert (report.rows, report.lateness.known) == (200, 200)
    scene.check_exactly_once()
    scene.check_no_file_is_left_over()
    for value in ("id-0", "id-77", "id-241"):
        assert len(rows_where(scene, EqualTo("message_id", value))) == 1
    assert {task.file.sort_order_id for task in scene.table.scan().plan_files()} == {1}
    assert read_watermarks(scene.table.metadata, "t") == {TP0: 7 * HOUR_MS, TP1: 7 * HOUR_MS}
    assert LatenessHistory.of(scene.table.metadata, "t", datetime(2000, 1, 1, tzinfo=UTC)).total.known == 200


@pytest.mark.deep
def test_another_partition_spec_needs_another_generation(scene: Scene) -> None:
    scene.run()
    for other in (["hour", "carrier", "bucket(8, message_id)", "truncate(2, origin)"], ["hour", "carrier"], "hour"):
        scene.config = scene.with_stream(partition_by=other)
        with pytest.raises(ConfigError, match=r"restore partition_by, or raise the stream's generation"):
            scene.run()


@pytest.mark.deep
def test_event_times_of_wrong_clocks_go_to_quarantine_and_make_no_partitions(make_scene: MakeScene) -> None:
    scene = make_scene(event_time_bounds={}, partition_by="hour")
    chance, now_ms = random.Random(1), int(datetime.now(UTC).timestamp() * 1000)
    around = 5000 * 365 * 24 * HOUR_MS

    def at(offset: int) -> int:
        return now_ms - 60_000 if offset % 100 == 0 else now_ms + chance.randrange(-around, around)

    messages = [event(n, at(n), timestamp_ms=now_ms) for n in range(10_000)]
    scene.put(TP0, messages, batch=2500)
    report = scene.run()
    assert report.rows + report.quarantined == 10_000
    within = range(now_ms - 7300 * 24 * HOUR_MS, now_ms + 24 * HOUR_MS)
    assert report.rows == sum(json.loads(m.value or b"")["at"] in within for m in messages) < 200
    assert report.files <= report.rows - 100 + 2, "one hour for those with a right clock, or two at its turn"
    reasons = Counter(r["reason"].partition(":")[0] for r in scene.quarantine.scan().to_arrow().to_pylist())
    assert set(reasons) == {"event_time_out_of_bounds", "event_time_out_of_range"}
    assert reasons["event_time_out_of_bounds"] > 6000
    scene.check_exactly_once()


@pytest.mark.deep
def test_lateness_and_watermarks_are_stored_and_reported(
    make_scene: MakeScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = make_scene(partition_by="hour")
    base = 1000 * HOUR_MS
    year_2100 = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp() * 1000)

    def late(offset: int, minutes: int, timestamp_ms: int = base) -> Record:
        return event(offset, timestamp_ms - minutes * 60_000, timestamp_ms=timestamp_ms)

    scene.put(TP0, [late(0, 0), late(1, -5), late(2, 1), late(3, 45), late(4, 60), late(5, 61), late(6, 30 * 60)])
    first = scene.run()
    assert "7 rows (2 more than 1 h late)" in str(first)
    assert first.document()["lateness"]["rows"] == [2, 1, 0, 0, 2, 1, 0, 0, 0, 1, 0, 0, 0]
    assert read_watermarks(scene.table.metadata, "t") == {TP0: base}
    scene.put(TP0, [late(7, 0, base - HOUR_MS), event(8, base, timestamp_ms=year_2100), event(9, 0, timestamp_ms=-1)])
    scene.put(TP1, [late(0, 0, base + 5), Record(1, base + 9, b"key", b"junk")])
    scene.run()
    watermarks = {TP0: base, TP1: base + 9}
    assert read_watermarks(scene.table.metadata, "t") == watermarks
    scene.rewrite()
    assert read_watermarks(scene.table.metadata, "t") == watermarks

    config = tmp_path / "streams.yaml"
    config.write_text(yaml.safe_dump(scene.config.model_dump(mode="json")))
    monkeypatch.setenv("WAYBILL_CONFIG", str(config))
    document = json.loads(CliRunner().invoke(app, ["lateness", "flights", "--json"]).stdout)
    assert (document["rows"], document["without_kafka_timestamp"], len(document["commits"])) == (10, 1, 2)
    assert [b["rows"] for b in document["buckets"]] == [4, 1, 0, 0, 2, 1, 0, 0, 0, 1, 0, 0, 1]
    assert (document["p50_seconds"], document["p90_seconds"], document["known_since"]) == (60, 3 * 24 * 3600, None)
    assert [(c["rows"], c["later_than_1h"], c["later_than_1d"]) for c in document["commits"]] == [(4, 1, 1), (7, 2, 1)]
    printed = CliRunner().invoke(app, ["lateness", "flights", "--since", "1h"])
    assert "up to 1 min" in printed.stdout
    assert "more than 30 d" in printed.stdout
    assert "flights, last 1h: 10 rows in 2 commits, 50% at most 1 min late, 90% at most 3 d late" in printed.stderr
    assert CliRunner().invoke(app, ["lateness", "flights", "--since", "soon"]).exit_code == 2
    later = datetime.now(UTC) + timedelta(minutes=1)
    assert LatenessHistory.of(scene.table.metadata, "t", later).total.known == 0
