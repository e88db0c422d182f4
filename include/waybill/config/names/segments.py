"""Parts of names: segments of keys, offsets with leading zeros, random tokens."""

from __future__ import annotations

import re
from enum import StrEnum

OFFSET_DIGITS = 20
"""Digits of a zero-padded offset in a key."""
MAX_OFFSET = (1 << 63) - 1
"""Kafka's largest offset."""

NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
"""A number in a name. Each number has one spelling, so each object has one name."""
OFFSET_PATTERN = rf"[0-9]{{{OFFSET_DIGITS}}}"


class Folder(StrEnum):
    """The folders of Waybill's own objects: the first segment of their keys below the archive's prefix.

    A stream's `files` sink must not write there, so `own_key` takes no other first segment.
    """

    BACKFILLS = "backfills"
    BACKUP = "backup"
    DEDUP = "dedup"
    GAPS = "gaps"
    GENERATIONS = "generations"
    GROUPS = "groups"
    INDEX = "index"
    KAFKA = "kafka"
    PLANS = "plans"
    PROBE = "probe"
    QUALITY = "quality"
    REPLAY_INDEX = "replay-index"
    REPLAYS = "replays"
    RESTORES = "restores"
    RETRIES = "retries"
    SHARDS = "shards"
    STARTS = "starts"
    SWEEPS = "sweeps"
    TOPICS = "topics"
    WATCH = "watch"


_TOKEN = re.compile(r"[0-9a-f]{32}")


def join_segments(prefix: str, *segments: str) -> str:
    """Join the non-empty segments of `prefix` and the other segments with slashes."""
    return "/".join([*(p for p in prefix.split("/") if p), *segments])


def own_key(prefix: str, folder: Folder, *segments: str) -> str:
    """Return the key of one of Waybill's own objects, or a prefix of such keys if the last segment is empty."""
    return join_segments(prefix, folder, *segments)


def check_token(token: str) -> str:
    """Return `token` if it is 32 hexadecimal digits, as a process chooses them. Raises `ValueError` otherwise."""
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"{token!r} is not a token: 32 hexadecimal digits")
    return token


def padded_offset(offset: int) -> str:
    """Return an offset with leading zeros, so that a listing is in order.

    Raises `ValueError` if it is not an offset.
    """
    if not 0 <= offset <= MAX_OFFSET:
        raise ValueError(f"{offset} is no offset: 0 to {MAX_OFFSET}")
    return padded(offset)


def padded(number: int) -> str:
    """Return a number with the digits of the largest one, so that a listing is in numeric order."""
    if not 0 <= number <= MAX_OFFSET:
        raise ValueError(f"{number} cannot be part of a name: 0 to {MAX_OFFSET}")
    return f"{number:0{OFFSET_DIGITS}d}"
