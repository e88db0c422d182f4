"""Endpoints and secrets, by the name of an Airflow connection.

The config names connections; it never holds an address with a password. A connection is looked up where Airflow
itself looks first, in the environment variable `AIRFLOW_CONN_<ID>` (JSON or URI), so that the CLI, a Spark driver and
a notebook need no Airflow. Inside an Airflow task the other places (secrets backends, the connections of the UI) are
asked as well: see `waybill.orchestration`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from waybill.errors import ConfigError, ConnectionMissing

__all__ = ["CatalogEndpoint", "Connection", "KafkaEndpoint", "S3Endpoint", "ZooKeeperEndpoint", "connection"]


class Connection(BaseModel):
    """An Airflow connection, with Airflow's field names."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, hide_input_in_errors=True)

    conn_id: str
    conn_type: str = ""
    host: str | None = None
    port: int | None = None
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

    def require(self, value: str | None, what: str) -> str:
        """`value`, or a `ConfigError` that says what the connection lacks."""
        if not value:
            raise ConfigError(
                f"connection {self.conn_id!r} has no {what}: set it in {self.variable} or in Airflow's UI"
            )
        return value


def variable(conn_id: str) -> str:
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
            f"(JSON or URI, as Airflow reads it), or add it in Airflow's UI under Admin → Connections"
        )
    try:
        fields = json.loads(text) if text.startswith("{") else _from_uri(text)
        if isinstance(fields.get("extra"), str):
            fields["extra"] = json.loads(fields["extra"] or "{}")
        return Connection(conn_id=conn_id, **{k: v for k, v in fields.items() if v not in (None, "")})
    except (ValueError, TypeError, ValidationError) as error:
        raise ConfigError(
            f"{variable(conn_id)} is neither a connection's JSON nor its URI as Airflow reads them ({type(error).__name__})"
        ) from None


def _from_uri(uri: str) -> dict[str, Any]:
    parts = urlsplit(uri)
    if not parts.scheme:
        raise ValueError("no scheme")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    extra = json.loads(query["__extra__"]) if "__extra__" in query else query
    return {
        "conn_type": parts.scheme.replace("-", "_"),
        "host": unquote(parts.hostname or ""),
        "port": parts.port,
        "login": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "schema": unquote(parts.path.removeprefix("/")),
        "extra": extra,
    }


class _Endpoint(BaseModel):
    model_config = ConfigDict(frozen=True)


class KafkaEndpoint(_Endpoint):
    """Where Kafka is. Options have librdkafka's names, as in Airflow's own Kafka connections."""

    bootstrap_servers: tuple[str, ...]

    @classmethod
    def of(cls, conn: Connection) -> KafkaEndpoint:
        """From the extra `bootstrap.servers`, or host and port."""
        default = f"{conn.host}:{conn.port or 9092}" if conn.host else None
        servers = conn.require(conn.extra.get("bootstrap.servers", default), "bootstrap.servers in its extra")
        return cls(bootstrap_servers=tuple(s.strip() for s in servers.split(",") if s.strip()))


class ZooKeeperEndpoint(_Endpoint):
    """Where ZooKeeper is: `hosts` is `host:port[,host:port…]`, `chroot` a path below which all nodes are, or ''."""

    hosts: str
    chroot: str = ""

    @classmethod
    def of(cls, conn: Connection) -> ZooKeeperEndpoint:
        hosts = [h if ":" in h else f"{h}:{conn.port or 2181}" for h in conn.require(conn.host, "host").split(",")]
        return cls(hosts=",".join(hosts), chroot=(conn.path or "").strip("/"))


class S3Endpoint(_Endpoint):
    """Where S3 is. All fields None: boto3's own chain (environment, profile, instance or pod role)."""

    endpoint_url: str | None = None
    region: str | None = None
    access_key: str | None = Field(default=None, repr=False)
    secret_key: str | None = Field(default=None, repr=False)
    session_token: str | None = Field(default=None, repr=False)

    @classmethod
    def of(cls, conn: Connection) -> S3Endpoint:
        """From an Airflow AWS connection: login and password are the keys, `endpoint_url`, `region_name` extras."""
        return cls(
            endpoint_url=conn.extra.get("endpoint_url"),
            region=conn.extra.get("region_name"),
            access_key=conn.login,
            secret_key=conn.password,
            session_token=conn.extra.get("aws_session_token"),
        )


class CatalogEndpoint(_Endpoint):
    """Which Iceberg catalog: `properties` go to `pyiceberg.catalog.load_catalog`, S3's own added by the caller."""

    properties: dict[str, str] = Field(repr=False)

    @classmethod
    def of(cls, conn: Connection) -> CatalogEndpoint:
        """The host is the catalog's `uri`; the extra's entries are PyIceberg properties (`type`, `warehouse`, …)."""
        properties = {str(key): str(value) for key, value in conn.extra.items()}
        properties.setdefault("uri", conn.require(conn.host, "host (the catalog's URI)"))
        conn.require(properties.get("type"), "'type' in its extra (sql, rest, glue, hive)")
        return cls(properties=properties)
