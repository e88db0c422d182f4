"""The database of replay requests: migrations, lost connections, and connections that cannot be used."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import catalog_servers
import pytest
import replay_databases as helpers
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

from waybill.base.errors import ConfigError, ReplayUnavailable
from waybill.config.connections import Connection
from waybill.config.connections.database import DatabaseEndpoint
from waybill.replay.requests.database import REVISION, Database, metadata, revision_of, version
from waybill.replay.requests.migrations import alembic_config, migrate


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with catalog_servers.postgres() as address:
        yield address


@pytest.fixture(params=["sqlite", "postgres"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database without tables."""
    if request.param == "sqlite":
        with helpers.open_database(helpers.sqlite_connection(tmp_path / "replay.db")) as database:
            yield database
        return
    with helpers.open_database(helpers.postgres_connection(request.getfixturevalue("postgres"))) as database:
        try:
            yield database
        finally:
            metadata.drop_all(database.engine)


def test_migrations_give_exactly_the_tables_of_the_models(empty: Database) -> None:
    assert migrate(empty) == (None, REVISION)
    with empty.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "version_table": version.name})
        assert compare_metadata(context, metadata) == []


def test_the_revision_of_the_models_is_the_newest_migration() -> None:
    assert ScriptDirectory.from_config(alembic_config()).get_current_head() == REVISION


def test_a_second_migration_changes_nothing_and_keeps_the_requests(empty: Database) -> None:
    migrate(empty)
    stored, _ = helpers.queue_of(empty).create(helpers.wanted(), "ada", helpers.NOW)
    assert migrate(empty) == (REVISION, REVISION)
    assert helpers.queue_of(empty).show(stored.request.id) == stored


def test_migrations_at_the_same_time_all_succeed(empty: Database) -> None:
    # Processes, not threads: Alembic's `op` is one for the process.
    assert helpers.in_processes(_migrate, [(empty.endpoint,)] * 4) == [0] * 4
    assert empty.write(lambda connection: connection.execute(text("SELECT COUNT(*) FROM replay_locks")).scalar()) == 1


def _migrate(endpoint: DatabaseEndpoint) -> None:
    with Database(endpoint) as database:
        migrate(database)


def test_a_database_without_tables_and_one_of_a_newer_waybill_are_refused_with_the_remedy(empty: Database) -> None:
    with pytest.raises(ConfigError, match=r"has no tables yet: run `waybill replay migrate`"):
        empty.check_revision()
    migrate(empty)
    empty.check_revision()
    empty.write(lambda connection: connection.execute(text("UPDATE replay_version SET version_num = 'r9999'")))
    for refuse in (empty.check_revision, lambda: migrate(empty)):
        with pytest.raises(ConfigError, match=r"newer Waybill \(revision r9999; .*upgrade"):
            refuse()


def test_the_tables_of_other_applications_are_left_alone(empty: Database) -> None:
    with empty.engine.begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('of_airflow')"))
    try:
        migrate(empty)
        with empty.engine.connect() as connection:
            assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == "of_airflow"
    finally:
        with empty.engine.begin() as connection:
            connection.execute(text("DROP TABLE alembic_version"))


def test_a_transaction_goes_on_after_the_server_has_closed_the_connection(postgres: str) -> None:
    with helpers.open_database(helpers.postgres_connection(postgres)) as database:
        calls = []

        def work(connection: object) -> int:
            calls.append(1)
            if len(calls) == 1:
                _end_sessions(postgres)
            return int(connection.execute(text("SELECT 7")).scalar())  # type: ignore[attr-defined]

        assert database.write(work) == 7
        assert len(calls) == 2


def _end_sessions(postgres: str) -> None:
    url = DatabaseEndpoint.of(helpers.postgres_connection(postgres)).url
    with create_engine(url).connect() as other:
        other.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = :d"
            ),
            {"d": url.database},
        )
    other.engine.dispose()


def test_a_server_that_does_not_answer_is_named_without_its_password() -> None:
    conn = Connection(
        conn_id="waybill_replay",
        conn_type="postgres",
        host="127.0.0.1",
        port=1,
        login="me",
        password="s3cret",
        path="replay",
    )
    with (
        Database(DatabaseEndpoint.of(conn), retry_seconds=0.2) as database,
        pytest.raises(ReplayUnavailable) as failed,
    ):
        database.read(revision_of)
    assert "postgresql+psycopg://me:***@127.0.0.1:1/replay" in str(failed.value)
    assert "AIRFLOW_CONN_WAYBILL_REPLAY" in str(failed.value)
    assert "s3cret" not in str(failed.value)


def test_a_locked_sqlite_file_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "replay.db"
    with helpers.open_database(helpers.sqlite_connection(path)) as database:
        migrate(database)
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.3, other.rollback)
        timer.start()
        stored, _ = helpers.queue_of(database).create(helpers.wanted(), "ada", helpers.NOW)
        timer.join()
        other.close()
        assert helpers.queue_of(database).show(stored.request.id) == stored


def test_a_transaction_that_fails_leaves_nothing(empty: Database) -> None:
    migrate(empty)

    def work(connection: object) -> None:
        connection.execute(text("DELETE FROM replay_locks"))  # type: ignore[attr-defined]
        raise KeyError("x")

    with pytest.raises(KeyError):
        empty.write(work)
    assert empty.read(lambda connection: connection.execute(text("SELECT COUNT(*) FROM replay_locks")).scalar()) == 1
