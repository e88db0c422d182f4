"""Endpoints and secrets, by the name of an Airflow connection.

The config names connections; it never holds an address with a password. A connection is looked up where Airflow
itself looks first, in the environment variable `AIRFLOW_CONN_<ID>` (JSON or URI), so that the CLI, a Spark driver and
a notebook need no Airflow. Inside an Airflow task the other places (secrets backends, the connections of the UI) are
asked as well: see `waybill.orchestration`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from waybill.errors import ConfigError, ConnectionMissing

__all__ = [
    "CatalogEndpoint",
    "Connection",
    "KafkaEndpoint",
    "S3Endpoint",
    "ZooKeeperEndpoint",
    "connection",
    "variable",
]


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
            raise ConfigError(f"connection {self.conn_id!r}: {key} in its extra must be text ({self.variable})")
        return value or None

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


def _addresses(conn: Connection, text: str, default_port: int) -> tuple[str, ...]:
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


class _Endpoint(BaseModel):
    model_config = ConfigDict(frozen=True)


class KafkaEndpoint(_Endpoint):
    """Where Kafka is. Options have librdkafka's names, as in Airflow's own Kafka connections."""

    bootstrap_servers: tuple[str, ...]

    @classmethod
    def of(cls, conn: Connection) -> KafkaEndpoint:
        """From the extra `bootstrap.servers`, or host and port. Raises `ConfigError` for what cannot be used."""
        servers = conn.text("bootstrap.servers") or conn.host
        required = conn.require(servers, "bootstrap.servers in its extra")
        protocol = conn.text("security.protocol") or "PLAINTEXT"
        if protocol.upper() != "PLAINTEXT":
            # Going on without it would send data in the clear, or fail with a riddle.
            raise ConfigError(
                f"connection {conn.conn_id!r}: security.protocol {protocol!r} is not supported yet, only PLAINTEXT"
            )
        return cls(bootstrap_servers=_addresses(conn, required, conn.port or 9092))


class ZooKeeperEndpoint(_Endpoint):
    """Where ZooKeeper is: `hosts` is `host:port[,host:port…]`, `chroot` a path below which all nodes are, or ''."""

    hosts: str
    chroot: str = ""

    @classmethod
    def of(cls, conn: Connection) -> ZooKeeperEndpoint:
        """From host (one, or several joined by commas), port and schema (the chroot)."""
        chroot = (conn.path or "").strip("/")
        if any(segment in {"", ".", ".."} for segment in chroot.split("/")) and chroot:
            raise ConfigError(f"connection {conn.conn_id!r}: schema {chroot!r} is no path of a ZooKeeper node")
        hosts = _addresses(conn, conn.require(conn.host, "host"), conn.port or 2181)
        return cls(hosts=",".join(hosts), chroot=chroot)


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
        for key, remedy in {
            "role_arn": "run with that role, or set AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE",
            "profile_name": "set AWS_PROFILE",
        }.items():
            if conn.extra.get(key):
                # Ignoring it would go on as somebody else.
                raise ConfigError(f"connection {conn.conn_id!r}: {key} in its extra is not supported: {remedy}")
        access_key = conn.login or conn.text("aws_access_key_id")
        secret_key = conn.password or conn.text("aws_secret_access_key")
        if bool(access_key) != bool(secret_key):
            lacks = "a secret key (password)" if access_key else "an access key (login)"
            raise ConfigError(f"connection {conn.conn_id!r} lacks {lacks}: give both, or none for boto3's own chain")
        url = conn.text("endpoint_url")
        if url and not re.match(r"https?://[^/]", url):
            raise ConfigError(f"connection {conn.conn_id!r}: endpoint_url {url!r} must be http://… or https://…")
        return cls(
            endpoint_url=url,
            region=conn.text("region_name"),
            access_key=access_key,
            secret_key=secret_key,
            session_token=conn.text("aws_session_token"),
        )


class CatalogEndpoint(_Endpoint):
    """Which Iceberg catalog: `properties` go to `pyiceberg.catalog.load_catalog`, S3's own added by the caller."""

    properties: dict[str, str] = Field(repr=False)

    @classmethod
    def of(cls, conn: Connection) -> CatalogEndpoint:
        """The host is the catalog's `uri`; the extra's entries are PyIceberg properties (`type`, `warehouse`, …)."""
        properties = {str(key): _property(conn, str(key), value) for key, value in conn.extra.items()}
        conn.require(properties.get("type"), "'type' in its extra (sql, rest, glue, hive)")
        if properties["type"] != "glue":  # which is found by the region
            properties.setdefault("uri", conn.require(conn.host, "host (the catalog's URI)"))
        return cls(properties=properties)


def _property(conn: Connection, key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise ConfigError(f"connection {conn.conn_id!r}: {key} in its extra must be text or a number")
    return str(value)
