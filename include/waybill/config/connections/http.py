"""Connections of type `http`: address, credentials, headers and TLS, as Airflow's HTTP hook reads them."""

from __future__ import annotations

import re
from typing import Any, Self

from pydantic import Field

from waybill.config.connections.connection import Connection, Endpoint, Tls

_TLS_OPTIONS = ("verify", "verify_ssl", "cert")
# Options of Airflow's HTTP hook in the extra. The hook sends every other entry as a header.
_UNSUPPORTED = (
    *("proxies", "proxy", "stream", "timeout", "allow_redirects", "max_redirects", "trust_env", "check_response"),
    *("srv_lookup", "check_hostname"),
)


class HttpEndpoint(Endpoint):
    """Address and credentials of an HTTP server."""

    url: str
    """Without a slash at the end."""
    login: str | None = None
    password: str | None = Field(default=None, repr=False)
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """Headers of each request, such as one with a token."""
    tls: Tls | None = None
    """Set for https."""

    @classmethod
    def of(cls, conn: Connection) -> Self:
        """Read a connection: host (or a whole URL), port, schema (`http` or `https`), and extra as Airflow's HTTP hook.

        Raises `ConfigError` for a connection that cannot be used, and for an option that Waybill would ignore.
        """
        url = _url(conn)
        for key in _UNSUPPORTED:
            if conn.extra.get(key) not in (None, ""):
                conn.refuse(f"{key} in its extra is not supported; it can hold {', '.join(_TLS_OPTIONS)}, and headers")
        https = url.startswith("https://")
        for key in _TLS_OPTIONS:
            if not https and conn.extra.get(key) not in (None, ""):
                conn.refuse(f"{key} in its extra needs https, and its URL is {url}")
        if conn.password and not conn.login:
            conn.refuse('it has a password and no login; a token goes into its extra: {"Authorization": "Bearer …"}')
        return cls(
            conn_id=conn.conn_id,
            url=url,
            login=conn.login,
            password=conn.password,
            headers={key: _header(conn, key) for key in conn.extra if key not in _TLS_OPTIONS},
            tls=_tls(conn) if https else None,
        )


class RegistryEndpoint(HttpEndpoint):
    """A schema registry with Confluent's REST API."""


class AirflowEndpoint(HttpEndpoint):
    """Airflow's REST API (v2): its URL without `/api/v2`, and a user with a password, or a header with a token."""

    @classmethod
    def of(cls, conn: Connection) -> Self:
        """Read a connection, as `HttpEndpoint.of`. Also raises `ConfigError` if it has no credentials."""
        endpoint = super().of(conn)
        if not endpoint.has_token and not (endpoint.login and endpoint.password):
            conn.refuse(
                "it needs a login and a password, from which Airflow makes a token, or a token in its extra: "
                '{"Authorization": "Bearer …"}'
            )
        return endpoint

    @property
    def has_token(self) -> bool:
        """Return whether the connection itself has a token, so none is requested."""
        return any(name.lower() == "authorization" for name in self.headers)


def _url(conn: Connection) -> str:
    host = conn.require(conn.host, "host (the server's address)")
    url = host if "://" in host else f"{conn.path or 'http'}://{host}"
    if conn.port:
        url = f"{url}:{conn.port}"
    if not re.fullmatch(r"https?://[^/\s@?#]+(/[^\s?#]*)?", url):
        conn.refuse(
            "its host, port and schema make no http:// or https:// address; login and password have fields of their own"
        )
    return url.rstrip("/")


def _header(conn: Connection, key: str) -> str:
    value = conn.extra[key]
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        conn.refuse(f"{key} in its extra is sent as a header, and must be ASCII text")
    return value


def _tls(conn: Connection) -> Tls:
    verify: Any = conn.extra.get("verify", conn.extra.get("verify_ssl", True))
    ca_file = verify if isinstance(verify, str) and verify.lower() not in ("true", "false", "") else None
    certificate, key = _certificate(conn)
    return Tls(
        conn_id=conn.conn_id,
        ca_file=ca_file,
        certificate_file=certificate,
        key_file=key,
        verify=True if ca_file else conn.flag("verify" if "verify" in conn.extra else "verify_ssl", True),
    )


def _certificate(conn: Connection) -> tuple[str | None, str | None]:
    """Return certificate and key file of `cert`: one PEM file with both, or a list of the two files."""
    cert = conn.extra.get("cert")
    if isinstance(cert, list) and len(cert) == 2 and all(isinstance(file, str) and file for file in cert):
        return cert[0], cert[1]
    return conn.text("cert"), None
