"""Mask addresses for display: the path and the query of a webhook or of a dead man's switch are secrets.

Pages, logs, errors and tables of the command line show `https://hooks.example.com/…`. Only the requester of a replay
gets the whole URL back.
"""

from __future__ import annotations

import logging
import re
import traceback
from typing import Any
from urllib.parse import urlsplit

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>`]+")
_UNREADABLE = "…"


def masked_url(url: str) -> str:
    """Return scheme, host and port of a URL, and `/…` for the rest: no user, password, path or query."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        return _UNREADABLE
    if not scheme or not host:
        return _UNREADABLE
    host = f"[{host}]" if ":" in host else host
    rest = "/…" if parts.path.strip("/") or parts.query or parts.fragment else ""
    return f"{scheme}://{host}{'' if port is None else f':{port}'}{rest}"


def without_urls(text: str) -> str:
    """Return a text with each URL in it masked."""
    return _URL.sub(lambda found: masked_url(found[0]), text)


def masked_stack_trace(error: BaseException) -> str:
    """Return the stack trace of an exception and of its causes, with each URL in it masked.

    Log it as a part of the message: `logger.exception` prints the texts of the exceptions unmasked.
    """
    return without_urls("".join(traceback.format_exception(error)))


def mask_urls_in_log(name: str) -> None:
    """Mask the URLs in the messages of a logger, such as `httpx`, which logs the URL of each request."""
    logger = logging.getLogger(name)
    if not any(isinstance(each, _MaskUrls) for each in logger.filters):
        logger.addFilter(_MaskUrls())


class _MaskUrls(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_masked(each) for each in record.args)
        record.msg = _masked(record.msg)
        return True


def _masked(value: Any) -> Any:
    if isinstance(value, int | float):
        return value
    text = str(value)
    return without_urls(text) if "://" in text else value
