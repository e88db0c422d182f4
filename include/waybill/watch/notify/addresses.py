"""The fields of connections that channels need, checked before the first message: addresses, tokens, mail servers.

Each error names the connection, the field and the remedy, and no secret.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

import httpx

from waybill.config.connections import Connection

_SLACK_HOOKS = "https://hooks.slack.com/services"
_SLACK_API = "https://slack.com/api/"
_HOST = re.compile(r"[^\s\x00-\x20\x7f/@?#\[\]:]+|\[[0-9A-Fa-f:.]+\]")


def http_address(connection: Connection) -> str:
    """Return the address of a connection of type `http`. Raises `ConfigError`."""
    host = connection.require(connection.host, "the host, or the whole address")
    return _checked(connection, _with_scheme(connection, host), "its host, port and schema make", connection.port)


def slack_webhook(connection: Connection) -> str:
    """Return the address of an incoming webhook, as the Slack provider makes it of a connection.

    Raises `ConfigError`.
    """
    secret = connection.require(connection.password, "the webhook's token, or a token of Slack's API, as the password")
    if secret.startswith(("http://", "https://")):
        return _checked(connection, secret, "its password is")
    base = _SLACK_HOOKS
    if connection.host:
        address = _with_scheme(connection, connection.host)
        base = _checked(connection, address, "its host, port and schema make", connection.port)
    return _checked(connection, f"{base.rstrip('/')}/{secret}", "its host and its password make")


def slack_api_address(connection: Connection, method: str) -> str:
    """Return the address of a method of Slack's API. Raises `ConfigError`."""
    base = connection.text("base_url") or _SLACK_API
    return f"{_checked(connection, base, 'base_url in its extra is').rstrip('/')}/{method}"


def token(connection: Connection, what: str) -> str:
    """Return the password, which is sent in a header. Raises `ConfigError` if it is empty or no ASCII text."""
    secret = connection.require(connection.password, what)
    if not secret.isascii() or not secret.isprintable() or secret != secret.strip():
        connection.refuse(
            "its password is sent in a header, and must be ASCII text without spaces around it: copy the token again"
        )
    return secret


def mail_host(connection: Connection) -> str:
    """Return the host of an SMTP server. Raises `ConfigError`."""
    host = connection.require(connection.host, "the SMTP server's host")
    if not _HOST.fullmatch(host) or not _is_encodable(host):
        connection.refuse(
            f"its host {host!r} is no name of a server: give the name alone, and the port in the field of its own"
        )
    return host.strip("[]")


def check_login(connection: Connection) -> None:
    """Raise `ConfigError` if login and password cannot be sent to an SMTP server."""
    for name, value in (("login", connection.login), ("password", connection.password)):
        if not (value or "").isascii():
            connection.refuse(f"its {name} must be ASCII text, since Python's SMTP client sends no other: change it")


def _with_scheme(connection: Connection, host: str) -> str:
    return host if "://" in host else f"{connection.path or 'https'}://{host}"


def _checked(connection: Connection, address: str, what: str, port: int | None = None) -> str:
    """Return an address with its port, which the connection may hold in a separate field."""
    parts = _split(connection, address, what)
    if port is not None:
        if parts.port is not None:
            connection.refuse(f"its host names port {parts.port}, and its port is {port}: remove one of them")
        address = parts._replace(netloc=f"{parts.netloc.rstrip(':')}:{port}").geturl()
    return address


def _split(connection: Connection, address: str, what: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_sound = is_sound and not re.search(r"[\s\x00-\x20\x7f]", address)
        is_sound = is_sound and _is_encodable(parts.hostname or "") and bool(httpx.URL(address).host)
    except (ValueError, httpx.InvalidURL):
        is_sound = False
    if not is_sound:
        connection.refuse(f"{what} no http:// or https:// address: give the address as in a browser, without spaces")
    return parts


def _is_encodable(host: str) -> bool:
    """Return whether a host has a form that a resolver takes: labels of 1 to 63 bytes."""
    try:
        return ":" in host or all(host.encode("idna").rstrip(b".").split(b"."))
    except UnicodeError:
        return False
