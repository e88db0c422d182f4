"""A schema registry's connection: an HTTP connection of Airflow's."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field

from waybill.connections.connection import Connection, Endpoint
from waybill.connections.tls import Tls

__all__ = ["RegistryEndpoint"]

_TLS_OPTIONS = ("verify", "verify_ssl", "cert")
# What Airflow's HTTP hook knows in an extra; all else there is a header to it.
_NOT_FOLLOWED = (
    *("proxies", "proxy", "stream", "timeout", "allow_redirects", "max_redirects", "trust_env", "check_response"),
    *("srv_lookup", "check_hostname"),
)


class RegistryEndpoint(Endpoint):
    """Where a registry that speaks Confluent's REST API is, and who we are there."""

    url: str
    """Without a slash at its end."""
    login: str | None = None
    password: str | None = Field(default=None, repr=False)
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """What is sent with each request, such as a token."""
    tls: Tls | None = None
    """With https."""

    @classmethod
    def of(cls, conn: Connection) -> RegistryEndpoint:
        """From host (or a whole URL), port and schema (`http` or `https`); the extra as Airflow's HTTP hook reads it.

        Raises `ConfigError` for what cannot be used, and for what would be passed over.
        """
        url = _url(conn)
        for key in _NOT_FOLLOWED:
            if conn.extra.get(key) not in (None, ""):
                conn.refuse(f"{key} in its extra is not supported; there are: {', '.join(_TLS_OPTIONS)}, and headers")
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


def _url(conn: Connection) -> str:
    host = conn.require(conn.host, "host (the registry's address)")
    url = host if "://" in host else f"{conn.path or 'http'}://{host}"
    if conn.port:
        url = f"{url}:{conn.port}"
    if not re.fullmatch(r"https?://[^/\s@?#]+(/[^\s?#]*)?", url):
        conn.refuse("its host, port and schema make no http:// or https:// address; a login has fields of its own")
    return url.rstrip("/")


def _header(conn: Connection, key: str) -> str:
    value = conn.extra[key]
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        conn.refuse(f"{key} in its extra is taken for a header, and must be text")
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
    """`cert`: a PEM file with certificate and key, or a list of the two files."""
    cert = conn.extra.get("cert")
    if isinstance(cert, list) and len(cert) == 2 and all(isinstance(file, str) and file for file in cert):
        return cert[0], cert[1]
    return conn.text("cert"), None
