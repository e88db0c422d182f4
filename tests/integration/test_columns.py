"""Typed columns: how a table gets them and follows the config, and how other tools read them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from partition_scenes import Scene
from pyiceberg.types import StringType

from waybill.base.errors import ConfigError
from waybill.config.connections import CatalogEndpoint, S3Endpoint
from waybill.config.models import Column
from waybill.config.names import TopicPartition
from waybill.records.batches.encode import Record
from waybill.tables.iceberg import ensure_tables, evolve_columns, open_catalog

pytestmark = pytest.mark.integration

TP = TopicPartition("flights", 0)
MakeScene = Callable[..., Scene]

ALL_TYPES = {
    "cancelled": "boolean",
    "delay": "int",
    "distance": "long",
    "load": "float",
    "speed": "double",
    "fare": "decimal(12,2)",
    "carrier": "string",
    "blob": "binary",
    "day": {"type": "date", "field": "times.day"},
    "left_at": {"type": "timestamp", "field": "times.left"},
    "detail": "json",
    "stops": "list<string>",
}
FULL = {
    "cancelled": False,
    "delay": -3,
    "distance": 2**40,
    "load": 0.5,
    "speed": 481.25,
    "fare": 129.99,
    "carrier": "UA",
    "blob": "AAEC",
    "times": {"day": "2013-01-31", "left": "2013-01-31T10:15:00-05:00"},
    "detail": {"gate": "B7", "crew": [1, 2]},
    "stops": ["EWR", None, "IAH"],
}


def message(offset: int, **fields: Any) -> Record:
    value = json.dumps({"at": offset * 1000, "id": f"id-{offset}"} | fields).encode()
    return Record(offset, offset * 1000, b"key", value)


def reconfigured(scene: Scene, **stream: Any) -> Scene:
    """Return a scene with the same archive and tables and a changed config."""
    scene.config = scene.with_stream(**stream)
    return scene


def columns_of(scene: Scene, *names: str) -> list[tuple[Any, ...]]:
    """Return the columns that PyIceberg reads from the table, by offset."""
    rows = scene.table.scan().to_arrow().sort_by("offset").select(names).to_pylist()
    return [tuple(row.values()) for row in rows]


def test_columns_of_all_types_are_read_by_pyiceberg_and_duckdb(make_scene: MakeScene, tmp_path: Path) -> None:
    scene = make_scene(columns=ALL_TYPES)
    scene.put(TP, [message(0, **FULL), message(1), message(2, **dict.fromkeys(FULL)), Record(3, 0, b"key", None)])
    assert scene.run().quarantined == 0
    first = (
        False,
        -3,
        2**40,
        0.5,
        481.25,
        Decimal("129.99"),
        "UA",
        b"\x00\x01\x02",
        date(2013, 1, 31),
        datetime(2013, 1, 31, 15, 15, tzinfo=UTC),
        '{"gate":"B7","crew":[1,2]}',
        ["EWR", None, "IAH"],
    )
    missing = (None,) * len(ALL_TYPES)
    assert columns_of(scene, *ALL_TYPES) == [first, missing, missing, missing]
    assert {type(field.field_type).__name__ for field in scene.table.schema().fields[10:]} >= {"DateType", "ListType"}
    _download(scene, tmp_path)
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        [row] = database.execute(
            f"SELECT {', '.join(ALL_TYPES)} FROM read_parquet('{tmp_path}/*.parquet') WHERE \"offset\" = 0"
        ).fetchall()
    assert row[:9] + row[10:] == first[:9] + first[10:]
    assert row[9].astimezone(UTC) == first[9]
    scene.check_exactly_once()


def _download(scene: Scene, folder: Path) -> None:
    table = scene.table
    for n, task in enumerate(table.scan().plan_files()):
        with table.io.new_input(task.file.file_path).open() as source:
            (folder / f"{n}.parquet").write_bytes(source.read())


def test_a_wrong_type_goes_to_quarantine_or_the_column_is_null(make_scene: MakeScene) -> None:
    scene = make_scene(columns={"delay": "int", "load": {"type": "float", "wrong_type": None, "field": "x.load"}})
    scene.put(
        TP,
        [
            message(0, delay=1, x={"load": "high"}),
            message(1, delay="late", x={"load": 0.5}),
            message(2, delay=2**31),
            message(3, delay=4.0, x=7),
        ],
    )
    assert scene.run().quarantined == 2
    assert columns_of(scene, "offset", "delay", "load") == [(0, 1, None), (3, 4, None)]
    reasons = scene.quarantine.scan().to_arrow().sort_by("offset").column("reason").to_pylist()
    assert reasons == [
        "column_wrong_type: field delay is 'late', a string, where int is expected",
        "column_wrong_type: field delay is 2147483648, which is out of the range of int",
    ]
    scene.check_exactly_once()


@pytest.mark.deep
def test_an_added_column_is_null_in_older_rows_and_rewrites_no_file(make_scene: MakeScene) -> None:
    scene = make_scene()
    scene.put(TP, [message(0, delay=1, carrier="UA")])
    scene.run()
    before = scene.referenced_files()
    scene = reconfigured(scene, columns={"delay": "int"})
    scene.put(TP, [message(1, delay=2, carrier="DL")])
    scene.run()
    scene = reconfigured(scene, columns={"carrier": "string", "delay": "int"})
    scene.put(TP, [message(2, delay=3, carrier="AA")])
    scene.run()
    assert columns_of(scene, "delay", "carrier") == [(None, None), (2, None), (3, "AA")]
    assert before < scene.referenced_files()
    scene.check_exactly_once()


@pytest.mark.deep
def test_a_removed_column_stays_in_the_table_and_is_null_in_new_rows(make_scene: MakeScene) -> None:
    scene = make_scene(columns={"delay": "int", "carrier": "string"})
    scene.put(TP, [message(0, delay=1, carrier="UA")])
    scene.run()
    scene = reconfigured(scene, columns={"carrier": "string"})
    scene.put(TP, [message(1, delay="no number", carrier="DL")])
    scene.run()
    scene = reconfigured(scene, columns={"carrier": "string", "delay": "int"})
    scene.put(TP, [message(2, delay=3, carrier="AA")])
    scene.run()
    assert columns_of(scene, "delay", "carrier") == [(1, "UA"), (None, "DL"), (3, "AA")]


def test_a_widened_type_applies_to_old_and_new_rows(make_scene: MakeScene) -> None:
    narrow = {"delay": "int", "load": "float", "fare": "decimal(5,2)", "stops": "list<int>"}
    wide = {"delay": "long", "load": "double", "fare": "decimal(9,2)", "stops": "list<long>"}
    scene = make_scene(columns=narrow)
    scene.put(TP, [message(0, delay=1, load=0.5, fare=999.99, stops=[1])])
    scene.run()
    scene = reconfigured(scene, columns=wide)
    scene.put(TP, [message(1, delay=2**40, load=0.1, fare=1234567.89, stops=[2**40])])
    scene.run()
    # Narrow again: the table keeps the wider type, and messages are checked against the config's type.
    scene = reconfigured(scene, columns=narrow)
    scene.put(TP, [message(2, delay=3, load=0.5, fare=1, stops=[3]), message(3, delay=2**40)])
    assert scene.run().quarantined == 1
    assert columns_of(scene, *narrow) == [
        (1, 0.5, Decimal("999.99"), [1]),
        (2**40, 0.1, Decimal("1234567.89"), [2**40]),
        (3, 0.5, Decimal("1.00"), [3]),
    ]
    scene.check_exactly_once()


@pytest.mark.parametrize(
    ("was", "is_now", "found"),
    [
        ("int", "string", "int"),
        ("double", "float", None),
        ("long", "decimal(20,0)", "long"),
        ("decimal(5,2)", "decimal(9,3)", r"decimal\(5, 2\)"),
        ("list<int>", "int", "list<int>"),
        ("string", "json", None),
        ("date", "timestamp", "date"),
    ],
)
def test_an_incompatible_column_change_is_refused(
    make_scene: MakeScene, was: str, is_now: str, found: str | None
) -> None:
    scene = make_scene(columns={"x": was})
    ensure_tables(scene.catalog, scene.stream)
    scene = reconfigured(scene, columns={"x": is_now, "y": "int"})
    if found is None:
        ensure_tables(scene.catalog, scene.stream)
        return
    with pytest.raises(ConfigError, match=rf"column 'x' of table \S+ is {found}, .*raise the stream's generation"):
        scene.run()
    assert "y" not in scene.table.schema().column_names, "nothing of it is done by halves"


def test_a_column_added_by_another_program_is_kept(make_scene: MakeScene) -> None:
    scene = make_scene()
    ensure_tables(scene.catalog, scene.stream)
    with scene.table.update_schema(allow_incompatible_changes=True) as update:
        update.add_column("theirs", StringType())
        update.add_column("needed", StringType(), required=True)
    evolve_columns(scene.table, {"theirs": Column(type="string")})
    with pytest.raises(ConfigError, match=r"'needed' .* is .*, and required, and the config has "):
        evolve_columns(scene.table, {"needed": Column(type="string")})


def test_concurrent_drivers_with_different_configs_add_all_columns_once(make_scene: MakeScene, tmp_path: Path) -> None:
    """Each driver gets its columns in any order, and no column is added twice."""
    endpoint = CatalogEndpoint(
        properties={"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    )
    scene = make_scene(columns={"shared": "int"})
    with open_catalog(endpoint, S3Endpoint()) as catalog:
        table = ensure_tables(catalog, scene.stream).main
    barrier = threading.Barrier(4, timeout=30)

    def drive(n: int) -> None:
        columns = {"shared": "long" if n % 2 else "int", "both": "string", f"own_{n}": "list<int>"}
        stream = scene.with_stream(columns=columns).stream("flights")
        with open_catalog(endpoint, S3Endpoint()) as catalog:
            mine = catalog.load_table(table.name()[-2:])
            barrier.wait()
            evolve_columns(mine, stream.columns)
            assert set(columns) <= set(mine.schema().column_names)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(drive, n) for n in range(4)]:
            done.result()
    with open_catalog(endpoint, S3Endpoint()) as catalog:
        fields = catalog.load_table(table.name()[-2:]).schema().fields
    assert sorted(field.name for field in fields[10:]) == ["both", "own_0", "own_1", "own_2", "own_3", "shared"]
    assert str(next(field for field in fields if field.name == "shared").field_type) == "long"
    assert len({field.field_id for field in fields}) == len(fields)


def test_a_refused_schema_change_is_tried_again(make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = make_scene()
    table = ensure_tables(scene.catalog, scene.stream).main
    rivals = [{"a": Column(type="int")}, {"b": Column(type="string"), "c": Column(type="int")}]
    commit = type(table)._do_commit
    met = []

    def meet(self: Any, **arguments: Any) -> Any:
        if self is table and rivals:
            met.append(rivals[0])
            evolve_columns(scene.table, rivals.pop(0))
        return commit(self, **arguments)

    monkeypatch.setattr(type(table), "_do_commit", meet)
    evolve_columns(table, {"a": Column(type="long"), "b": Column(type="string"), "c": Column(type="int")})
    assert len(met) == 2
    assert [str(field.field_type) for field in table.schema().fields[10:]] == ["long", "string", "int"]


def test_a_plan_is_executed_with_its_own_columns_after_the_table_has_changed(make_scene: MakeScene) -> None:
    scene = make_scene(columns={"delay": "int", "old": "string"})
    scene.put(TP, [message(0, delay=1, old="o", new="n")])
    die_at(scene, "planned")
    scene = reconfigured(scene, columns={"delay": "long", "new": "string"})
    scene.put(TP, [message(1, delay=2**40, old="o", new="n")])
    assert scene.run().resumed
    assert columns_of(scene, "delay", "old", "new") == [(1, "o", None)]
    scene.run()
    assert columns_of(scene, "delay", "old", "new") == [(1, "o", None), (2**40, None, "n")]
    scene.check_exactly_once()


def test_a_driver_with_an_older_config_executes_a_plan_of_a_newer_one(make_scene: MakeScene) -> None:
    scene = make_scene(columns={"delay": "int", "new": "string"})
    scene.put(TP, [message(0, delay=1, new="n")])
    die_at(scene, "planned")
    assert reconfigured(scene, columns={}).run().resumed
    assert columns_of(scene, "delay", "new") == [(1, "n")]


@pytest.mark.deep
def test_staged_files_are_committed_after_the_table_has_changed(make_scene: MakeScene) -> None:
    """Manifest entries are made from the files' footers, which have the narrower types and lack the new column."""
    narrow = {"delay": "int", "load": "float", "fare": "decimal(5,2)", "stops": "list<int>"}
    scene = make_scene(columns=narrow)
    scene.put(TP, [message(0, delay=1, load=0.5, fare=999.99, stops=[1])])
    die_at(scene, "staged")
    wide = {"delay": "long", "load": "double", "fare": "decimal(9,2)", "stops": "list<long>", "new": "date"}
    assert reconfigured(scene, columns=wide).run().resumed
    assert columns_of(scene, *wide) == [(1, 0.5, Decimal("999.99"), [1], None)]
    scene.check_exactly_once()


class _Killed(BaseException):
    pass


def die_at(scene: Scene, step: str) -> None:
    def done(reached: str) -> None:
        if reached == step:
            raise _Killed

    with pytest.raises(_Killed):
        scene.run(on_step=done)
