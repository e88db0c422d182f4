"""The catalog, tables, progress and commits, with a real catalog and real S3."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from partition_scenes import Scene, event, junk
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from sqlalchemy.exc import OperationalError

from waybill.base.errors import CatalogUnavailable, CommitConflict, ConfigError, DocumentTooNew, ProgressLost
from waybill.config.connections import CatalogEndpoint, S3Endpoint, find_connection
from waybill.config.names import TopicPartition
from waybill.tables.iceberg import (
    Commit,
    CommitOutcome,
    ensure_tables,
    load_tables,
    open_catalog,
    publish,
    read_progress,
    remove_files,
)

pytestmark = pytest.mark.integration

TP = TopicPartition("flights", 0)
MakeScene = Callable[..., Scene]


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    return make_scene()


def commit_of(scene: Scene, start: int | None, end: int, *, must_be_at_start: bool = True) -> Commit:
    """Return a commit that adds no files and moves the progress of one topic-partition."""
    begin = {} if start is None else {TP: start}
    return Commit(f"plan-{start}", f"run_{start}", begin, {TP: end}, [], {}, must_be_at_start=must_be_at_start)


def test_main_table_and_quarantine_are_created_once_with_their_schemas(scene: Scene) -> None:
    assert load_tables(scene.catalog, scene.stream) is None
    tables = ensure_tables(scene.catalog, scene.stream)
    assert tables.main.metadata.format_version == 2
    assert str(tables.main.spec().fields[0].transform) == "day"
    assert [str(field.transform) for field in tables.main.sort_order().fields] == ["identity"]
    assert tables.quarantine.spec().is_unpartitioned()
    again = ensure_tables(scene.catalog, scene.stream)
    assert again.main.metadata.table_uuid == tables.main.metadata.table_uuid
    found = load_tables(scene.catalog, scene.stream)
    assert found is not None
    assert found.quarantine.metadata.table_uuid == tables.quarantine.metadata.table_uuid


def test_removal_of_files_leaves_no_folder_objects(scene: Scene) -> None:
    """Arrow's own removal creates an empty object with the name of the folder."""
    table = ensure_tables(scene.catalog, scene.stream).main
    folder = f"{table.location()}/data/day=1"
    paths = [f"{folder}/{number}" for number in range(1005)]
    for path in paths[:3] + paths[-2:]:
        with table.io.new_output(path).create() as file:
            file.write(b"x")
    table.io.delete(paths[0])
    table.io.delete(paths[0])  # a missing file is no error
    assert len(scene.data_files()) == 4
    remove_files(table.io, paths)
    assert scene.data_files() == set()


def test_table_with_other_columns_is_refused(scene: Scene) -> None:
    scene.catalog.create_namespace_if_not_exists("tests")
    schema = Schema(NestedField(1, "topic", StringType()), NestedField(2, "partition", LongType()))
    scene.catalog.create_table(f"{scene.stream.table}", schema)
    with pytest.raises(ConfigError, match=r"has long for 'partition' where int is needed"):
        ensure_tables(scene.catalog, scene.stream)


def local_catalog(directory: Path) -> CatalogEndpoint:
    """Return the endpoint of a new catalog for one test: a SQLite file that does not exist yet."""
    uri, warehouse = f"sqlite:///{directory}/catalog.db", f"file://{directory}/warehouse"
    return CatalogEndpoint(properties={"type": "sql", "uri": uri, "warehouse": warehouse})


def foreign_snapshot(scene: Scene) -> None:
    """Commit an empty snapshot without Waybill's properties."""
    with scene.table.transaction() as transaction, transaction.update_snapshot().fast_append():
        pass


def test_drivers_that_open_a_new_catalog_at_once_create_each_table_once(scene: Scene, tmp_path: Path) -> None:
    barrier = threading.Barrier(4, timeout=30)

    def drive(_: int) -> set[str]:
        barrier.wait()
        with open_catalog(local_catalog(tmp_path), S3Endpoint()) as catalog:
            barrier.wait()
            tables = ensure_tables(catalog, scene.stream)
        return {str(table.metadata.table_uuid) for table in (tables.main, tables.quarantine)}

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(drive, range(4)))
    assert len(set.union(*found)) == 2


def test_commit_moves_progress_only_from_its_start(scene: Scene) -> None:
    table = ensure_tables(scene.catalog, scene.stream).main
    assert read_progress(table.metadata, "t") == {}
    assert publish(table, commit_of(scene, None, 10)) is CommitOutcome.COMMITTED
    assert publish(table, commit_of(scene, None, 10)) is CommitOutcome.ADOPTED
    assert publish(scene.table, commit_of(scene, 10, 20)) is CommitOutcome.COMMITTED
    assert publish(table, commit_of(scene, None, 10)) is CommitOutcome.ADOPTED, "it is further by now"
    with pytest.raises(CommitConflict, match=r'"flights/0":20.*neither where plan plan-30 starts nor at its end'):
        publish(scene.table, commit_of(scene, 30, 40))
    with pytest.raises(CommitConflict):
        publish(scene.table, commit_of(scene, 15, 25))
    assert read_progress(scene.table.metadata, "t") == {TP: 20}


def test_quarantine_may_be_behind_the_start_but_not_ahead(scene: Scene) -> None:
    table = ensure_tables(scene.catalog, scene.stream).quarantine
    assert publish(table, commit_of(scene, 30, 40, must_be_at_start=False)) is CommitOutcome.COMMITTED
    assert publish(table, commit_of(scene, 50, 60, must_be_at_start=False)) is CommitOutcome.COMMITTED
    assert publish(table, commit_of(scene, 30, 40, must_be_at_start=False)) is CommitOutcome.ADOPTED
    with pytest.raises(CommitConflict):
        publish(table, commit_of(scene, 55, 65, must_be_at_start=False))


def test_refused_commit_is_retried_and_adopts_the_commit_of_a_rival(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between loading the table and the commit come first a foreign snapshot, then a rival with the same plan."""
    table = ensure_tables(scene.catalog, scene.stream).main
    rivals = [
        lambda: foreign_snapshot(scene),
        lambda: publish(scene.table, commit_of(scene, None, 10)),
    ]
    refused = []
    commit = type(table)._do_commit

    def let_a_rival_commit_first(self: object, **arguments: object) -> None:
        if self is table and rivals:
            rivals.pop(0)()
        try:
            commit(self, **arguments)  # type: ignore[arg-type]
        except CommitFailedException as error:
            refused.append(error)
            raise

    monkeypatch.setattr(type(table), "_do_commit", let_a_rival_commit_first)
    assert publish(table, commit_of(scene, None, 10)) is CommitOutcome.ADOPTED
    assert len(refused) == 2
    progress = [
        s.summary.additional_properties.get("waybill.progress") for s in scene.table.metadata.snapshots if s.summary
    ]
    assert len([p for p in progress if p]) == 1


@pytest.mark.parametrize(("lost", "outcome"), [(1, CommitOutcome.COMMITTED), (2, CommitOutcome.ADOPTED)])
def test_commit_with_unknown_outcome_is_found_in_the_table(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, lost: int, outcome: CommitOutcome
) -> None:
    """Commit 0 is the empty first snapshot. The answer is lost when the branch is built, or when it is published."""
    table = ensure_tables(scene.catalog, scene.stream).main
    commit = type(table)._do_commit
    answers: list[OperationalError | None] = [None, None, None]
    answers[lost] = OperationalError("UPDATE", {}, Exception("connection lost"))

    def lose_the_answer(self: object, **arguments: object) -> None:
        commit(self, **arguments)  # type: ignore[arg-type]
        if (error := answers.pop(0)) is not None:
            raise error

    monkeypatch.setattr(type(table), "_do_commit", lose_the_answer)
    assert publish(table, commit_of(scene, None, 10)) is outcome
    assert len(scene.published_plans(scene.table)) == 1
    assert set(scene.table.metadata.refs) == {"main"}


def test_locked_catalog_is_waited_for_and_then_unavailable(scene: Scene, tmp_path: Path) -> None:
    endpoint = local_catalog(tmp_path)
    with open_catalog(endpoint, S3Endpoint()) as catalog:
        ensure_tables(catalog, scene.stream)
        assert catalog.engine.url.query["timeout"] == "60", "SQLite's own timeout is 5 s"
    database = sqlite3.connect(tmp_path / "catalog.db", check_same_thread=False)
    database.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(0.5, database.rollback)
    release.start()
    with open_catalog(endpoint, S3Endpoint()) as catalog:
        assert load_tables(catalog, scene.stream) is not None
    release.join()
    database.execute("BEGIN EXCLUSIVE")
    short_timeout = CatalogEndpoint(
        properties={**endpoint.properties, "uri": f"{endpoint.properties['uri']}?timeout=0.1"}
    )
    with pytest.raises(CatalogUnavailable, match="locked"):
        open_catalog(short_timeout, S3Endpoint())
    database.close()


@pytest.mark.parametrize(
    ("document", "error", "message"),
    [
        ({"v": 2, "offsets": {}}, DocumentTooNew, r"waybill\.progress of table t was written by a newer Waybill"),
        ({"offsets": {}}, ProgressLost, r"table t: the snapshot property waybill\.progress cannot be parsed"),
    ],
)
def test_read_progress_refuses_a_newer_or_damaged_document(
    scene: Scene, document: dict[str, object], error: type[Exception], message: str
) -> None:
    table = ensure_tables(scene.catalog, scene.stream).main
    properties = {"waybill.progress": json.dumps(document)}
    with table.transaction() as transaction, transaction.update_snapshot(properties).fast_append():
        pass
    with pytest.raises(error, match=message):
        read_progress(table.metadata, "t")


def test_secrets_are_in_neither_table_metadata_nor_plans(scene: Scene) -> None:
    scene.put(TP, [event(0, 0), junk(1)])
    scene.run()
    s3 = S3Endpoint.of(find_connection(scene.config.storage.connection))
    texts = [scene.table.metadata.model_dump_json(), scene.quarantine.metadata.model_dump_json()]
    texts += [scene.store.read(key).decode() for key in scene.keys("plans/")]
    assert len(texts) == 5, "the metadata of two tables; plan, staged files and audit"
    for text in texts:
        assert s3.secret_key
        assert s3.secret_key not in text
