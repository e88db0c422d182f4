"""Each kind of Iceberg catalog: PyIceberg and Spark share a table, and DuckDB reads the same rows from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import catalog_servers
import duckdb
import duckdb_extension_avro
import duckdb_extension_httpfs
import duckdb_extension_iceberg
import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer
from partition_scenes import Scene, event, junk
from pyspark.sql import SparkSession

from devstack import Stack
from waybill.base.errors import ConfigError
from waybill.config.connections import CatalogEndpoint, S3Endpoint, find_connection
from waybill.config.names import TopicPartition
from waybill.tables.iceberg import load_tables, open_catalog
from waybill.tables.maintenance.maintenance_run import run_maintenance
from waybill.tables.spark.catalog import SparkCatalog, spark_catalog
from waybill.tables.spark.iceberg import SparkProcedures, attach_catalog

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TP = TopicPartition("flights", 0)
RUNS = 3
ROWS = RUNS * 9
Found = tuple[int, int, str]
"""Rows, the sum of their offsets, and a digest of their values in order."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with catalog_servers.postgres() as address:
        yield address


@pytest.fixture(scope="module")
def rest(stack: Stack) -> Iterator[str]:
    with catalog_servers.rest(stack) as uri:
        yield uri


@pytest.fixture(scope="module")
def glue() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(
    params=["sqlite", *(pytest.param(kind, marks=pytest.mark.deep) for kind in ("postgres", "rest", "glue"))]
)
def catalog(request: pytest.FixtureRequest, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set the connection of the catalog that streams use, as a user writes it, and return the kind of catalog."""
    kind: str = request.param
    warehouse = f"{stack.warehouse}-{kind}"
    if kind == "postgres":
        uri = f"postgresql+psycopg://{request.getfixturevalue('postgres')}"
        document = {"host": uri, "extra": {"type": "sql", "warehouse": warehouse}}
    elif kind == "rest":
        document = {"host": request.getfixturevalue("rest"), "extra": {"type": "rest"}}
    elif kind == "glue":
        extra = {"type": "glue", "warehouse": warehouse, "glue.endpoint": request.getfixturevalue("glue")}
        extra |= {"glue.region": "us-east-1", "glue.access-key-id": "AKIDGLUE", "glue.secret-access-key": "of-glue"}
        document = {"extra": extra}
    if kind != "sqlite":
        monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps({"conn_type": "iceberg", **document}))
    return kind


def in_spark(spark: SparkSession) -> tuple[SparkSession, SparkCatalog]:
    """Return a Spark session with the catalog."""
    catalog = spark_catalog(
        CatalogEndpoint.of(find_connection("iceberg_default")), S3Endpoint.of(find_connection("aws_default"))
    )
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    attach_catalog(session, catalog)
    return session, catalog


def test_pyiceberg_and_spark_share_a_catalog(
    catalog: str, spark: SparkSession, make_scene: Callable[..., Scene]
) -> None:
    scene = make_scene()
    for n in range(0, RUNS * 10, 10):
        scene.put(TP, [*(event(n + i, n * 1000 + i) for i in range(9)), junk(n + 9)])
        scene.run()
    before = by_pyiceberg(scene)
    assert before[0] == ROWS
    session, known = in_spark(spark)
    table = f"{known.name}.{'.'.join(scene.table.name())}"
    assert by_spark(session, table) == before

    config = scene.with_stream(maintenance={"min_input_files": 2})
    # One partition, so one commit: Spark makes several at the same time, and moto's Glue lets one overwrite another.
    report = run_maintenance(config, "flights", lambda: SparkProcedures(session, known.name))
    assert [(t.before.data_files, t.after.data_files) for t in report.tables] == [(RUNS, 1), (RUNS, 1)], catalog
    assert by_spark(session, table) == by_pyiceberg(scene) == by_duckdb(scene) == before
    scene.put(TP, [event(RUNS * 10, 0)])
    scene.run()
    scene.check_exactly_once()
    assert by_spark(session, table)[0] == ROWS + 1
    for setting in known.system_properties:
        session._jvm.java.lang.System.clearProperty(setting)


def by_pyiceberg(scene: Scene) -> Found:
    rows = scene.table.scan(selected_fields=("offset", "value")).to_arrow().sort_by("offset")
    return _found(rows)


def by_spark(session: SparkSession, table: str) -> Found:
    rows = session.sql(f"SELECT offset, value FROM {table} ORDER BY offset").collect()
    return _found(pa.table({"offset": [row["offset"] for row in rows], "value": [bytes(row["value"]) for row in rows]}))


def by_duckdb(scene: Scene) -> Found:
    """Read the table from its metadata file with DuckDB's own Iceberg extension."""
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
        query = 'SELECT "offset", value FROM iceberg_scan(?) ORDER BY "offset"'
        return _found(database.execute(query, [scene.table.metadata_location]).to_arrow_table())


def _found(rows: pa.Table) -> Found:
    offsets = rows.column("offset").to_pylist()
    return len(offsets), sum(offsets), hashlib.sha256(b"\0".join(rows.column("value").to_pylist())).hexdigest()


def test_catalog_password_is_in_no_setting_that_spark_shows(
    postgres: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {"conn_type": "iceberg", "host": f"postgresql+psycopg://{postgres}", "extra": {"type": "sql"}}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(document))
    session, known = in_spark(spark)
    shown = {row["key"]: row["value"] for row in session.sql("SET").collect()}
    assert shown[f"spark.sql.catalog.{known.name}.type"] == "jdbc"
    secrets = [catalog_servers.PASSWORD, S3Endpoint.of(find_connection("aws_default")).secret_key]
    for secret in secrets:
        assert secret in known.properties.values()
        assert [key for key, value in shown.items() if secret in value] == []
        assert secret not in str(spark.sparkContext.getConf().getAll())


def test_missing_jars_are_named(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.tables.spark.iceberg._REQUIRED_CLASSES", ("org.apache.iceberg.Absent",))
    with pytest.raises(ConfigError, match=r"Spark does not find org.apache.iceberg.Absent: .*iceberg-spark-runtime"):
        in_spark(spark)


def test_catalog_without_tables_can_be_opened(catalog: str, make_scene: Callable[..., Any]) -> None:
    scene = make_scene()
    endpoint = CatalogEndpoint.of(find_connection("iceberg_default"))
    with open_catalog(endpoint, S3Endpoint.of(find_connection("aws_default"))) as opened:
        assert load_tables(opened, scene.stream) is None, catalog
