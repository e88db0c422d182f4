"""Databases of replay requests in tests, SQLite and PostgreSQL, and requests for them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

from waybill.config.connections import Connection
from waybill.config.connections.database import DatabaseEndpoint
from waybill.config.models.replay import ReplayQuotas
from waybill.replay.requests.claims import Claims
from waybill.replay.requests.database import Database
from waybill.replay.requests.queue import Queue
from waybill.replay.requests.request import Requested
from waybill.replay.requests.targets import S3Target

NOW = 1_790_000_000_000
TIMEOUT_MS = 60_000
NO_QUOTAS = ReplayQuotas(open_requests=100_000, open_requests_per_requester=100_000, requests_per_day=1_000_000)


def sqlite_connection(path: Path) -> Connection:
    """Return the connection of a SQLite file."""
    return Connection(conn_id="waybill_replay", conn_type="sqlite", host=str(path))


def postgres_connection(address: str, **extra: str) -> Connection:
    """Return the connection of a PostgreSQL server from `catalog_servers.postgres`."""
    parts = urlsplit(f"postgres://{address}")
    return Connection(
        conn_id="waybill_replay",
        conn_type="postgres",
        host=parts.hostname,
        port=parts.port,
        login=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        path=parts.path.removeprefix("/"),
        extra=extra,
    )


def open_database(connection: Connection, *, retry_seconds: float = 30.0) -> Database:
    """Return the database of a connection."""
    return Database(DatabaseEndpoint.of(connection), retry_seconds=retry_seconds)


def queue_of(database: Database, quotas: ReplayQuotas = NO_QUOTAS) -> Queue:
    """Return the queue of a database; without quotas unless they are given."""
    return Queue(database, quotas)


def claims_of(database: Database) -> Claims:
    """Return the claims of a database, with a timeout of `TIMEOUT_MS`."""
    return Claims(database, timedelta(milliseconds=TIMEOUT_MS))


def wanted(key: bytes = b"AA1", *, priority: int = 0) -> Requested:
    """Return what a request asks for."""
    return Requested("flights", (key,), NOW - 7_200_000, NOW - 3_600_000, S3Target(), priority)


def in_processes(work: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> list[int]:
    """Call `work` with each of the arguments, each in a process of its own. Return the exit codes."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    return [process.exitcode if process.exitcode is not None else -1 for process in processes]
