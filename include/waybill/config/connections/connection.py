"""Airflow connections, read from the environment; the endpoint of the Iceberg catalog, and TLS settings.

`Connection` has Airflow's fields. Each kind of service has an `Endpoint` class, whose `of` method reads a connection.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from waybill.base.errors import ConfigError, ConnectionMissing


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
        """The environment variable from which Airflow and Waybill read the connection."""
        return connection_variable(self.conn_id)

    def to_environment(self) -> str:
        """Return the value of `AIRFLOW_CONN_<ID>` from which another process reads this connection."""
        return self.model_dump_json(by_alias=True, exclude_none=True, exclude={"conn_id"})

    def text(self, key: str) -> str | None:
        """Return a text in the extra, or None if it is absent or empty. Raises `ConfigError` if it is not text."""
        value = self.extra.get(key)
        if value is not None and not isinstance(value, str):
            self.refuse(f"{key} in its extra must be text")
        return value or None

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean in the extra: JSON's, or the word, as in a URI. Raises `ConfigError` for other values."""
        value = self.extra.get(key, default)
        found = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else value
        if not isinstance(found, bool):
            self.refuse(f"{key} in its extra must be true or false")
        return found

    def choice(self, key: str, choices: Iterable[str], default: str) -> str:
        """Return one of `choices`; case does not matter. Raises `ConfigError`, which lists the choices."""
        given, choices = self.text(key) or default, list(choices)
        found = next((each for each in choices if each.lower() == given.lower()), None)
        if found is None:
            self.refuse(f"{key} {given!r} in its extra is not supported: it can be {', '.join(choices)}")
        return found

    def refuse(self, reason: str) -> NoReturn:
        """Raise `ConfigError` about this connection. `reason` must not contain a secret."""
        raise ConfigError(f"connection {self.conn_id!r}: {reason} ({self.variable})")

    def require(self, value: str | None, what: str) -> str:
        """Return `value`. Raises `ConfigError` if it is empty; `what` names it in the message."""
        if not value:
            raise ConfigError(
                f"connection {self.conn_id!r} has no {what}: set it in {self.variable} or in Airflow's UI"
            )
        return value


def connection_variable(conn_id: str) -> str:
    """Return the name of a connection's environment variable."""
    return f"AIRFLOW_CONN_{conn_id.upper()}"


def find_connection(conn_id: str, environment: Mapping[str, str] | None = None) -> Connection:
    """Return the connection with that id from `environment` (default: the process's).

    Raises `ConnectionMissing` if there is none, `ConfigError` if it cannot be parsed. No message contains the value,
    which may hold a secret.
    """
    environment = os.environ if environment is None else environment
    text = environment.get(connection_variable(conn_id), "").strip()
    if not text:
        raise ConnectionMissing(
            f"connection {conn_id!r} is not defined: set the environment variable {connection_variable(conn_id)} "
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
    except (ValueError, TypeError, AttributeError, RecursionError, ValidationError) as error:
        raise ConfigError(
            f"{connection_variable(conn_id)} is neither a connection's JSON nor its URI as Airflow reads them"
            f"{_fields_of(error)}"
        ) from None


def _fields_of(error: Exception) -> str:
    """Return which fields are invalid, without their values, which may be secrets."""
    if not isinstance(error, ValidationError):
        return ""
    return ": " + ", ".join(f"{fault['loc'][0]}: {fault['msg']}" for fault in error.errors(include_url=False))


def _normal_type(conn_type: Any) -> str:
    text = str(conn_type or "").replace("-", "_")
    return "postgres" if text == "postgresql" else text


def _from_uri(uri: str) -> dict[str, Any]:
    """Parse a URI as Airflow's `Connection.from_uri` does (tests/integration/test_connections_as_airflow.py)."""
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
    # The host is a path, for instance of a SQLite file: urlsplit would convert it to lower case.
    return unquote(netloc.rpartition("@")[2].partition(":")[0])


def addresses(conn: Connection, text: str, default_port: int) -> tuple[str, ...]:
    """Return `host:port` of each server in a comma-separated list. Raises `ConfigError` for a malformed address."""
    found = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        address = entry if _has_port(entry) else f"{entry}:{default_port}"
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16 or "/" in host or " " in host:
            raise ConfigError(
                f"connection {conn.conn_id!r}: {entry!r} is no address: write host:port, several separated by commas "
                f"({conn.variable})"
            )
        found.append(address)
    if not found:
        raise ConfigError(f"connection {conn.conn_id!r} names no server: set it in {conn.variable} or in Airflow's UI")
    return tuple(found)


def _has_port(entry: str) -> bool:
    # An IPv6 address is in brackets, as in every notation where a port may follow.
    return ":" in entry.rpartition("]")[2]


class Endpoint(BaseModel):
    """Base of the endpoints: the data with which Waybill reaches one kind of service."""

    model_config = ConfigDict(frozen=True)

    conn_id: str = ""
    """The connection it was read from, for messages."""

    @property
    def remedy(self) -> str:
        """Names the connection to correct, for messages."""
        if not self.conn_id:
            return "its connection"
        return f"connection {self.conn_id!r} ({connection_variable(self.conn_id)})"


class CatalogEndpoint(Endpoint):
    """The Iceberg catalog. The caller passes `properties`, and those of S3, to `pyiceberg.catalog.load_catalog`."""

    properties: dict[str, str] = Field(repr=False)

    @classmethod
    def of(cls, conn: Connection) -> CatalogEndpoint:
        """Read a connection: its host is the catalog's `uri`, its extra holds PyIceberg properties (`type`, …).

        Raises `ConfigError` for a connection that cannot be used.
        """
        properties = {str(key): _property(conn, str(key), value) for key, value in conn.extra.items()}
        conn.require(properties.get("type"), "'type' in its extra (sql, rest, glue, hive)")
        if properties["type"] != "glue":  # Glue's address follows from the region
            properties.setdefault("uri", conn.require(conn.host, "host (the catalog's URI)"))
        return cls(conn_id=conn.conn_id, properties=properties)


def _property(conn: Connection, key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise ConfigError(f"connection {conn.conn_id!r}: {key} in its extra must be text or a number")
    return str(value)


logger = logging.getLogger(__name__)


class Tls(BaseModel):
    """TLS 1.2 or newer. The server's certificate is checked unless `verify` is false. Files are PEM."""

    model_config = ConfigDict(frozen=True)

    conn_id: str = ""
    """The connection it was read from, for messages."""
    ca_file: str | None = None
    """CA that signed the server's certificate; None: the CAs that the system trusts."""
    ca_pem: str | None = Field(default=None, repr=False)
    """The CA as text instead of a file."""
    certificate_file: str | None = None
    """The client certificate, with its chain."""
    key_file: str | None = None
    key_password: str | None = Field(default=None, repr=False)
    verify: bool = True
    """Whether the server's certificate is checked at all."""
    check_hostname: bool = True
    """Whether the certificate must be for the requested host name."""

    def context(self) -> ssl.SSLContext:
        """Return an SSL context for clients. Raises `ConfigError`, which names the file, if a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.verify and self.check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        if not self.verify:
            logger.warning("connection %r: the servers' certificates are not checked", self.conn_id)
        if self.ca_file or self.ca_pem:
            self._load_ca(context)
        else:
            context.load_default_certs()
        if self.certificate_file:
            self._load_certificate(context, self.certificate_file)
        return context

    def _load_ca(self, context: ssl.SSLContext) -> None:
        what = f"the CA file {self.ca_file!r}" if self.ca_file else "the CA given as text"
        try:
            context.load_verify_locations(cafile=self.ca_file, cadata=self.ca_pem)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise self._unusable(what, error) from None

    def _load_certificate(self, context: ssl.SSLContext, certificate_file: str) -> None:
        for path in filter(None, (certificate_file, self.key_file)):
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise self._unusable(f"the file {path!r}", error) from None
        try:
            # Never None: OpenSSL would prompt for the password at the terminal, and wait.
            context.load_cert_chain(certificate_file, self.key_file, password=self.key_password or "")
        except (OSError, ValueError) as error:
            key = self.key_file or certificate_file
            raise self._unusable(
                f"the certificate {certificate_file!r} with the key {key!r} and the key's password", error
            ) from None

    def _unusable(self, what: str, error: Exception) -> ConfigError:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        return ConfigError(f"connection {self.conn_id!r}: {what} cannot be used: {reason}")
