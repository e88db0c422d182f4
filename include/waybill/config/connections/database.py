"""Connections of the types `sqlite`, `postgres` and `mysql`: a SQL database, as Airflow's hooks read them."""

from __future__ import annotations

from pathlib import PurePosixPath

from pydantic import ConfigDict, Field
from sqlalchemy import URL

from waybill.config.connections.connection import Connection, Endpoint

_DRIVERS = {"postgres": "postgresql+psycopg", "mysql": "mysql+pymysql"}


class DatabaseEndpoint(Endpoint):
    """A SQL database."""

    url: URL = Field(repr=False)
    """SQLAlchemy's URL, with the password."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is a file of this machine."""
        return self.url.get_backend_name() == "sqlite"

    @property
    def shown(self) -> str:
        """The address without the password, for messages."""
        return self.url.set(query={}).render_as_string(hide_password=True)

    @classmethod
    def of(cls, conn: Connection) -> DatabaseEndpoint:
        """Read a connection. `sqlite`: the host is the path of the file. Others: host, port, login, password, schema.

        `driver` in the extra names another driver for SQLAlchemy (`psycopg2`, `mysqldb`). The driver gets all the
        other entries as its own options, such as `sslmode`. Raises `ConfigError` for a connection that cannot be used.
        """
        if conn.conn_type == "sqlite":
            return cls(conn_id=conn.conn_id, url=_sqlite_url(conn))
        if conn.conn_type not in _DRIVERS:
            conn.refuse(f"its type is {conn.conn_type or 'empty'!r}, and must be sqlite, postgres or mysql")
        drivername = _DRIVERS[conn.conn_type]
        if driver := conn.text("driver"):
            drivername = f"{drivername.partition('+')[0]}+{driver}"
        return cls(
            conn_id=conn.conn_id,
            url=URL.create(
                drivername,
                username=conn.login,
                password=conn.password,
                host=conn.require(conn.host, "host"),
                port=conn.port,
                database=conn.require(conn.path, "schema (the database's name)"),
                query={key: str(conn.text(key) or "") for key in conn.extra if key != "driver"},
            ),
        )


def _sqlite_url(conn: Connection) -> URL:
    path = conn.require(conn.host, "host (the path of the SQLite file)")
    # Tasks of Airflow and the command line run in different directories.
    if not PurePosixPath(path).is_absolute():
        conn.refuse(f"its host {path!r} must be the absolute path of the SQLite file")
    if conn.extra:
        conn.refuse(f"the extra of a SQLite file must be empty, and has {', '.join(conn.extra)}")
    return URL.create("sqlite", database=path)
