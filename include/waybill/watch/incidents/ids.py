"""The ids of incidents: ASCII, of bounded length, and never the same for two incidents of a book.

An id is used where few characters are allowed: in a header, a Message-ID, a key of PagerDuty, a command line. A subject
may hold any character, since people name topics, groups and DAGs. So the id holds the ASCII characters of the subject.
If characters were left out, a hash of the whole subject follows.

    flights-archive_lag-20260301T120000Z
    kafka_group_lag-orders_billing_3f0c2a9b81d4-20260301T120000Z
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Collection
from datetime import UTC, datetime

from waybill.watch.incidents.finding import FindingKey

MOST_CHARACTERS = 255
"""The longest id. PagerDuty allows no longer keys."""

_WHOLE_STREAM = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_WHOLE_SUBJECT = re.compile(r"[a-z0-9](?:[a-z0-9_]{0,38}[a-z0-9])?")
_SHOWN_CHARACTERS = 40
_HASH_DIGITS = 12
_MOST_NAME_CHARACTERS = 180


def incident_id(key: FindingKey, opened_ms: int, taken: Collection[str]) -> str:
    """Return the id of an incident about `key` that was opened at a time (epoch ms).

    All watches that find the same broken promise make the same id. `taken`: ids of the book, which the new id must not
    repeat.
    """
    stream, promise, subject = key
    parts = (_part(stream, _WHOLE_STREAM), _part(promise, _WHOLE_STREAM), _part(subject, _WHOLE_SUBJECT))
    name = "-".join(part for part in parts if part)
    if len(name) > _MOST_NAME_CHARACTERS:
        name = f"{name[:_MOST_NAME_CHARACTERS]}_{_hash(name)}"
    found = f"{name}-{datetime.fromtimestamp(opened_ms / 1000, UTC):%Y%m%dT%H%M%SZ}"
    if found in taken:
        # The parts of another key give the same name, or an incident of the same key began and ended in this second.
        found = f"{found}-{_hash(repr((key, opened_ms)))}"
    number = 2
    unique = found
    while unique in taken:
        unique, number = f"{found}-{number}", number + 1
    return unique


def _part(text: str, whole: re.Pattern[str]) -> str:
    """Return a plain text unchanged; of another text, return its ASCII characters and its hash."""
    if not text or whole.fullmatch(text):
        return text
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    shown = re.sub(r"[^a-z0-9]", "_", ascii_text.lower())[:_SHOWN_CHARACTERS].strip("_")
    return f"{shown}_{_hash(text)}" if shown else _hash(text)


def _hash(text: str) -> str:
    # A name that is not UTF-8 has lone surrogates in Python.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
