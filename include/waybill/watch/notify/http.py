"""One HTTP request to a channel, and what its answer means.

| answer                             | means                                                                     |
|------------------------------------|---------------------------------------------------------------------------|
| 2xx                                | delivered, unless the caller finds an error in the body                   |
| 3xx                                | not delivered: a redirect is not followed, since a POST would become a GET |
| others, no answer                  | not delivered                                                             |
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

from waybill.config.connections import Connection
from waybill.config.connections.masking import mask_urls_in_log, without_urls
from waybill.watch.notify.texts import encodable, one_line

TIMEOUT_SECONDS = 20.0
_READ_BYTES = 64 * 1024
_EXCERPT_CHARACTERS = 200
_SHORTEST_SECRET = 4


# httpx logs the whole URL of a request at the level of Airflow's task logs.
mask_urls_in_log("httpx")


class ChannelFailed(Exception):
    """A message could not be sent. The error text names the connection and the reason."""


def failure(connection: Connection, reason: str) -> ChannelFailed:
    """Return the error of a channel, without the password of its connection."""
    return ChannelFailed(f"connection {connection.conn_id!r}: {_without(reason, connection.password)}")


def without_secrets(connection: Connection, text: str) -> str:
    """Return a text of another program without the password of a connection, and with each URL in it masked."""
    return without_urls(_without(text, connection.password))


def _without(text: str, secret: str | None) -> str:
    return text.replace(secret, "***") if secret and len(secret) >= _SHORTEST_SECRET else text


@dataclass(frozen=True, slots=True)
class ChannelAnswer:
    """A 2xx answer."""

    status: int
    media_type: str
    text: str
    """The beginning of the body, up to 64 KB."""

    @property
    def excerpt(self) -> str:
        """Return status and body for an error."""
        return f"{self.status}: {one_line(self.text, _EXCERPT_CHARACTERS)}"

    @property
    def is_page(self) -> bool:
        """Return whether the answer is a page for a browser, such as a login page: no API answers with one."""
        return self.media_type == "text/html"

    def document(self) -> dict[str, Any] | None:
        """Return the JSON object in the body; None if the body is not a JSON object."""
        try:
            found = json.loads(self.text)
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


def request(
    connection: Connection, method: str, url: str, body: object = None, headers: Mapping[str, str] | None = None
) -> ChannelAnswer:
    """Return the answer to one request. `body`: a JSON value. Raises `ChannelFailed` if it is not a 2xx."""
    # ASCII, whatever the names in it are; httpx itself would encode as UTF-8, which has no lone surrogates.
    content = None if body is None else json.dumps(encodable(body)).encode()
    media = {} if content is None else {"Content-Type": "application/json"}
    sent = {**media, "Accept-Encoding": "identity", **(headers or {})}
    try:
        with httpx.stream(
            method, url, content=content, headers=sent, timeout=TIMEOUT_SECONDS, verify=_certificates()
        ) as response:
            # Some servers repeat the requested URL in the answer, and its path may be a secret.
            text = _without(_beginning(response), urlsplit(url).path)
    except (OSError, httpx.HTTPError) as error:
        raise failure(connection, without_urls(f"{type(error).__name__}: {error}")) from error
    status = response.status_code
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    answer = ChannelAnswer(status, media_type, text)
    if 300 <= status < 400:
        raise failure(
            connection,
            f"the server answered {status}, a redirect to {_target(url, response.headers.get('location', ''))}, which "
            f"is not followed: write the final address into the connection's host",
        )
    if not response.is_success:
        raise failure(connection, f"the server answered {answer.excerpt}")
    return answer


@cache
def _certificates() -> ssl.SSLContext:
    """Return the settings of TLS. It takes 30 ms to read all certificates, and a watch may send 1,000 messages."""
    return httpx.create_ssl_context()


def _beginning(response: httpx.Response) -> str:
    content = b""
    for chunk in response.iter_raw():
        content += chunk
        if len(content) >= _READ_BYTES:
            break
    return content[:_READ_BYTES].decode("utf-8", "replace")


def _target(url: str, location: str) -> str:
    """Return the address of a redirect without possible secrets: login, query, and the requested path."""
    if not location:
        return "nowhere"
    try:
        asked, found = urlsplit(url), urlsplit(urljoin(url, location))
        host = found.netloc.rpartition("@")[2]
    except ValueError:
        return "an address that is none"
    path = found.path
    if asked.path.strip("/"):
        path = path.replace(asked.path.rstrip("/"), "/…")
    return one_line(f"{found.scheme}://{host}{path}", _EXCERPT_CHARACTERS)
