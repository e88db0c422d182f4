"""The database of the replay requests: its tables, and transactions that survive a lost connection.

The SQL works in SQLite, PostgreSQL and MySQL 8: there is no RETURNING, no partial index, and no upsert. Values from
people or programs are always bound parameters.

When a connection is lost, it is unknown whether its transaction was committed, so the whole transaction is repeated. So
each transaction must have the same outcome the second time; the docstrings of `queue` and `claims` explain how.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    create_engine,
    event,
    inspect,
    select,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, NoSuchModuleError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from waybill.base.errors import ConfigError, ReplayUnavailable
from waybill.config.connections import find_connection
from waybill.config.connections.database import DatabaseEndpoint
from waybill.config.models import Config
from waybill.replay.requests.request import replay_of

T = TypeVar("T")
logger = logging.getLogger(__name__)

REVISION = "r0001"
"""The newest migration, which creates the tables of this module."""

_RETRY_SECONDS = 30.0
_FIRST_PAUSE_SECONDS = 0.1
_MAX_PAUSE_SECONDS = 5.0
_SQLITE_LOCK_SECONDS = 30
_CONNECT_SECONDS = 10
_LOCK_SECONDS = 20
_IDLE_SECONDS = 30
_STATEMENT_SECONDS = 60

_LIBPQ_OPTIONS = {
    "connect_timeout": _CONNECT_SECONDS,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_PYMYSQL_OPTIONS = {
    "connect_timeout": _CONNECT_SECONDS,
    "read_timeout": _STATEMENT_SECONDS,
    "write_timeout": _STATEMENT_SECONDS,
}
_DRIVER_OPTIONS: dict[str, dict[str, int]] = {
    "psycopg": _LIBPQ_OPTIONS,
    "psycopg2": _LIBPQ_OPTIONS,
    "pymysql": _PYMYSQL_OPTIONS,
}
"""For each driver, the options by which it detects a dead server. Options of the connection have precedence."""

metadata = MetaData()
# MySQL's TEXT has 64 KiB, which the keys of one request may exceed.
_LongText = Text().with_variant(mysql.LONGTEXT(), "mysql")

requests = Table(
    "replay_requests",
    metadata,
    Column("id", String(26), primary_key=True),
    Column("document", _LongText, nullable=False),
    Column("stream", String(100), nullable=False),
    Column("requester", String(200), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("idempotency_key", String(200)),
    Column("fingerprint", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    # The number of the last claim, 0 before the first. It is the fencing token of every write of a worker.
    Column("claim", BigInteger, nullable=False),
    Column("worker", String(200)),
    # Null while no worker holds the claim.
    Column("heartbeat_ms", BigInteger),
    # No worker can claim the request before this time.
    Column("not_before_ms", BigInteger, nullable=False),
    Column("cursor", _LongText),
    Column("found", BigInteger, nullable=False),
    Column("delivered", BigInteger, nullable=False),
    Column("rejected", BigInteger, nullable=False),
    Column("share", Float, nullable=False),
    Column("started_at_ms", BigInteger),
    Column("finished_at_ms", BigInteger),
    # Null is not equal to null, so requests without such a key do not conflict.
    UniqueConstraint("requester", "idempotency_key", name="uq_replay_requests_idempotency_key"),
    Index("ix_replay_requests_state", "state", "id"),
    Index("ix_replay_requests_requester", "requester", "id"),
    Index("ix_replay_requests_requester_state", "requester", "state"),
)
"""One row for each request."""

rejected = Table(
    "replay_rejected",
    metadata,
    Column("request_id", String(26), primary_key=True),
    Column("topic", String(249), primary_key=True),
    Column("partition_number", Integer, primary_key=True, autoincrement=False),
    Column("message_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("reason", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)
"""One row for each message that a target rejected."""

requesters = Table(
    "replay_requesters",
    metadata,
    Column("requester", String(200), primary_key=True),
    Column("last_claimed_ms", BigInteger, nullable=False),
)
"""When a request of each requester was last claimed, so that requesters take turns."""

locks = Table(
    "replay_locks",
    metadata,
    Column("name", String(20), primary_key=True),
    Column("taken", BigInteger, nullable=False),
)
"""One row, `create`, whose update makes creations wait for each other: so their quotas are exact."""

version = Table("replay_version", metadata, Column("version_num", String(32), primary_key=True))
"""Alembic's table. It does not have Alembic's default name, since the database may be Airflow's own, which has a table
of that name."""


class Database:
    """The database of the replay requests. A context manager."""

    def __init__(
        self,
        endpoint: DatabaseEndpoint,
        *,
        retry_seconds: float = _RETRY_SECONDS,
    ) -> None:
        """`retry_seconds`: how long a transaction is repeated while its connection is lost.

        Raises `ConfigError` if the driver is not installed. Does not connect yet.
        """
        self.endpoint, self._retry_seconds = endpoint, retry_seconds
        self._engine = _engine(endpoint)

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the database in the config, and check that its tables belong to this version of Waybill.

        Raises `ConfigError` if replay is off, or the database is not migrated; `ReplayUnavailable`.
        """
        database = cls(DatabaseEndpoint.of(find_connection(replay_of(config).database)))
        try:
            database.check_revision()
        except BaseException:
            database.close()
            raise
        return database

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    @property
    def engine(self) -> Engine:
        """SQLAlchemy's engine, for migrations."""
        return self._engine

    @property
    def shown(self) -> str:
        """The address without the password, for messages."""
        return self.endpoint.shown

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a read transaction, and return its result. Raises `ReplayUnavailable`."""
        return self._transact(work, "BEGIN")

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction, commit it, and return the result of `work`. Raises `ReplayUnavailable`.

        `work` is called again if the connection is lost, although the first transaction may have been committed.
        """
        return self._transact(work, "BEGIN IMMEDIATE")

    def _transact(self, work: Callable[[Connection], T], sqlite_begin: str) -> T:
        def once() -> T:
            with self._engine.connect().execution_options(sqlite_begin=sqlite_begin) as connection, connection.begin():
                return work(connection)

        retrying = Retrying(
            retry=retry_if_exception(is_lost_connection),
            stop=stop_after_delay(self._retry_seconds),
            wait=wait_random_exponential(multiplier=_FIRST_PAUSE_SECONDS, max=_MAX_PAUSE_SECONDS),
            before_sleep=_log_retry,
            reraise=True,
        )
        try:
            return retrying(once)
        except (DBAPIError, PoolTimeout) as error:
            if not is_lost_connection(error):
                raise
            raise ReplayUnavailable(
                f"the database of the replay requests ({self.shown}) did not answer for "
                f"{self._retry_seconds:.0f} s: {_reason(error)}. Check {self.endpoint.remedy}"
            ) from error

    def check_revision(self) -> None:
        """Raise `ConfigError` if the tables belong to another version of Waybill; the message has the remedy."""
        found = self.read(revision_of)
        if found is not None and found > REVISION:
            raise ConfigError(
                f"the database of the replay requests ({self.shown}) belongs to a newer Waybill (revision {found}; "
                f"this one has {REVISION}): upgrade this installation"
            )
        if found != REVISION:
            state = f"has the tables of an older Waybill ({found})" if found else "has no tables yet"
            raise ConfigError(
                f"the database of the replay requests ({self.shown}) {state}: run `waybill replay migrate`"
            )


def revision_of(connection: Connection) -> str | None:
    """Return the revision of the tables; None if there are none."""
    if not inspect(connection).has_table(version.name):
        return None
    return connection.execute(select(version.c.version_num)).scalar()


def is_lost_connection(error: BaseException) -> bool:
    """Return whether a transaction failed because its connection was lost, or a lock was not free in time."""
    if isinstance(error, PoolTimeout | OperationalError | InterfaceError):
        # SQLite has one class for all its errors.
        return "no such table" not in str(error)
    return isinstance(error, DBAPIError) and error.connection_invalidated


def _log_retry(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    logger.warning("the database of the replay requests did not answer, trying again: %s", _reason(error))


def _reason(error: BaseException | None) -> str:
    # Not str(error), which contains the statement with its parameters.
    return " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split())


def _engine(endpoint: DatabaseEndpoint) -> Engine:
    options: dict[str, Any] = {"hide_parameters": True}
    if endpoint.is_sqlite:
        options["connect_args"] = {"timeout": _SQLITE_LOCK_SECONDS}
    else:
        defaults = _DRIVER_OPTIONS.get(endpoint.url.get_driver_name(), {})
        given = {key: value for key, value in defaults.items() if key not in endpoint.url.query}
        options |= {"pool_pre_ping": True, "isolation_level": "READ COMMITTED", "connect_args": given}
    try:
        engine = create_engine(endpoint.url, **options)
    except (ImportError, NoSuchModuleError, ArgumentError) as error:
        raise ConfigError(
            f"{endpoint.remedy}: the database cannot be used ({error}); install its driver, or name another one as "
            f"`driver` in the extra"
        ) from None
    if endpoint.is_sqlite:
        path = Path(endpoint.url.database or "")
        if not path.parent.is_dir():
            raise ConfigError(f"{endpoint.remedy}: there is no directory {path.parent} for the SQLite file")
        _begin_explicitly(engine)
    elif engine.dialect.name == "postgresql":
        _limit_transactions(engine)
    return engine


def _begin_explicitly(engine: Engine) -> None:
    """Let SQLite take its lock at the beginning of a transaction that writes.

    Python's driver would begin with the first write, and then a transaction that has read before cannot wait for the
    lock: it fails at once if another process has written.
    """

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        begin = connection.get_execution_options().get("sqlite_begin", "BEGIN IMMEDIATE")
        connection.exec_driver_sql(begin)


def _limit_transactions(engine: Engine) -> None:
    """Let PostgreSQL end the transaction of a frozen process, which holds locks that others wait for.

    The setting is made for each transaction, since PgBouncer may give the session to other clients.
    """

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        limits = {
            "idle_in_transaction_session_timeout": _IDLE_SECONDS,
            "lock_timeout": _LOCK_SECONDS,
            "statement_timeout": _STATEMENT_SECONDS,
        }
        calls = ", ".join(f"set_config('{name}', '{seconds}s', true)" for name, seconds in limits.items())
        connection.exec_driver_sql(f"SELECT {calls}")
