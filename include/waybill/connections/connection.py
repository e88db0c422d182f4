"""A connection as Airflow holds it, read from the environment.

The config names connections; it never holds an address with a password. A connection is looked up where Airflow
itself looks first, in the environment variable `AIRFLOW_CONN_<ID>` (JSON or URI), so that the CLI, a Spark driver and
a notebook need no Airflow. Inside an Airflow task the other places (secrets backends, the connections of the UI) are
asked as well: see `waybill.orchestration`.

The Iceberg catalog's connection.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from waybill.errors import ConfigError, ConnectionMissing

__all__ = ["CatalogEndpoint", "Connection", "Endpoint", "addresses", "connection", "variable"]


class Connection(BaseModel):
    """An Airflow connection, with Airflow's field names."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, hide_input_in_errors=True)

    conn_id: str
    conn_type: str = ""
    host: str | None = None
    port: int | None = Field(default=None, ge=1, le=65535)
    login: str | None = Field(default=None, repr=False)
    password: str | None = Field(default=None, repr=False)
    path: str | None = Field(default=None, alias="schema")
    extra: dict[str, Any] = Field(default_factory=dict, repr=False)

    @property
    def variable(self) -> str:
        """The environment variable that Airflow and Waybill read it from."""
        return variable(self.conn_id)

    def to_environment(self) -> str:
        """The value that `AIRFLOW_CONN_<ID>` must have for another process to find this connection."""
        return self.model_dump_json(by_alias=True, exclude_none=True, exclude={"conn_id"})

    def text(self, key: str) -> str | None:
        """A text of the extra, None where there is none. Raises `ConfigError` for anything but text."""
        value = self.extra.get(key)
        if value is not None and not isinstance(value, str):
            self.refuse(f"{key} in its extra must be text")
        return value or None

    def flag(self, key: str, default: bool) -> bool:
        """True or false in the extra: JSON's own, or the word, as a URI has it. Raises `ConfigError` for else."""
        value = self.extra.get(key, default)
        found = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else value
        if not isinstance(found, bool):
            self.refuse(f"{key} in its extra must be true or false")
        return found

    def choice(self, key: str, choices: Iterable[str], default: str) -> str:
        """One of `choices`, in any case. Raises `ConfigError` that lists them."""
        given, choices = self.text(key) or default, list(choices)
        found = next((each for each in choices if each.lower() == given.lower()), None)
        if found is None:
            self.refuse(f"{key} {given!r} in its extra is not supported: it can be {', '.join(choices)}")
        return found

    def refuse(self, reason: str) -> NoReturn:
        """A `ConfigError` about this connection. `reason` must not hold a secret."""
        raise ConfigError(f"connection {self.conn_id!r}: {reason} ({self.variable})")

    def require(self, value: str | None, what: str) -> str:
        """`value`, or a `ConfigError` that says what the connection lacks."""
        if not value:
            raise ConfigError(
                f"connection {self.conn_id!r} has no {what}: set it in {self.variable} or in Airflow's UI"
            )
        return value


def variable(conn_id: str) -> str:
    """The environment variable of a connection."""
    return f"AIRFLOW_CONN_{conn_id.upper()}"


def connection(conn_id: str, environment: Mapping[str, str] | None = None) -> Connection:
    """The connection of that name, from the environment (default: the process's).

    Raises `ConnectionMissing` if there is none, `ConfigError` if it cannot be read. The value is never in the message:
    it may hold a secret.
    """
    environment = os.environ if environment is None else environment
    text = environment.get(variable(conn_id), "").strip()
    if not text:
        raise ConnectionMissing(
            f"connection {conn_id!r} is not defined: set the environment variable {variable(conn_id)} "
            f"(JSON or URI, as Airflow reads it), or add it in Airflow's UI under Admin → Connections. "
            f"For the local stack: source .waybill/env"
        )
    try:
        fields = json.loads(text) if text.startswith("{") else _from_uri(text)
        if isinstance(fields.get("extra"), str):
            fields["extra"] = json.loads(fields["extra"] or "{}")
        fields["conn_type"] = _normal_type(fields.get("conn_type"))
        given = {key: value for key, value in fields.items() if value not in (None, "")}
        return Connection(**(given | {"conn_id": conn_id}))
    except (ValueError, TypeError, AttributeError, ValidationError) as error:
        raise ConfigError(
            f"{variable(conn_id)} is neither a connection's JSON nor its URI as Airflow reads them{_fields_of(error)}"
        ) from None


def _fields_of(error: Exception) -> str:
    """Which fields are wrong; not their values, which may be secrets."""
    if not isinstance(error, ValidationError):
        return ""
    return ": " + ", ".join(f"{fault['loc'][0]}: {fault['msg']}" for fault in error.errors(include_url=False))


def _normal_type(conn_type: Any) -> str:
    text = str(conn_type or "").replace("-", "_")
    return "postgres" if text == "postgresql" else text


def _from_uri(uri: str) -> dict[str, Any]:
    """What Airflow's `Connection.from_uri` makes of it (tests/integration/test_connections_as_airflow.py)."""
    conn_type, separator, rest = uri.partition("://")
    if not separator or not conn_type or rest.count("://") > 1:
        raise ValueError("no scheme, or more than two")
    # `http://https://host`: the second scheme belongs to the host.
    protocol, separator, _ = rest.partition("://")
    parts = urlsplit(rest if separator else f"//{rest}")
    host = _host(parts.netloc, parts.hostname)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    return {
        "conn_type": conn_type,
        "host": f"{protocol}://{host}" if separator and host else host,
        "port": parts.port,
        "login": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "schema": unquote(parts.path.removeprefix("/")),
        "extra": json.loads(query["__extra__"]) if "__extra__" in query else query,
    }


def _host(netloc: str, hostname: str | None) -> str:
    host = unquote(hostname or "")
    if "/" not in host:
        return host
    # A path as a host, as of a SQLite file: urlsplit would change it to lower case.
    return unquote(netloc.rpartition("@")[2].partition(":")[0])


def addresses(conn: Connection, text: str, default_port: int) -> tuple[str, ...]:
    """`host:port` of each server in a list joined by commas. Raises `ConfigError` for what is no address."""
    found = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        address = entry if _has_port(entry) else f"{entry}:{default_port}"
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16 or "/" in host or " " in host:
            raise ConfigError(
                f"connection {conn.conn_id!r}: {entry!r} is no address: host:port, several joined by commas "
                f"({conn.variable})"
            )
        found.append(address)
    if not found:
        raise ConfigError(f"connection {conn.conn_id!r} names no server: set it in {conn.variable} or in Airflow's UI")
    return tuple(found)


def _has_port(entry: str) -> bool:
    # An IPv6 address is in brackets, as everywhere where a port may follow.
    return ":" in entry.rpartition("]")[2]


class Endpoint(BaseModel):
    """Base of what the connections of a kind say."""

    model_config = ConfigDict(frozen=True)

    conn_id: str = ""
    """The connection that it is from, for messages."""

    @property
    def remedy(self) -> str:
        """For messages: which connection to look at."""
        return f"connection {self.conn_id!r} ({variable(self.conn_id)})" if self.conn_id else "its connection"


class CatalogEndpoint(Endpoint):
    """Which Iceberg catalog: `properties` go to `pyiceberg.catalog.load_catalog`, S3's own added by the caller."""

    properties: dict[str, str] = Field(repr=False)

    @classmethod
    def of(cls, conn: Connection) -> CatalogEndpoint:
        """The host is the catalog's `uri`; the extra's entries are PyIceberg properties (`type`, `warehouse`, …)."""
        properties = {str(key): _property(conn, str(key), value) for key, value in conn.extra.items()}
        conn.require(properties.get("type"), "'type' in its extra (sql, rest, glue, hive)")
        if properties["type"] != "glue":  # which is found by the region
            properties.setdefault("uri", conn.require(conn.host, "host (the catalog's URI)"))
        return cls(conn_id=conn.conn_id, properties=properties)


def _property(conn: Connection, key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise ConfigError(f"connection {conn.conn_id!r}: {key} in its extra must be text or a number")
    return str(value)
