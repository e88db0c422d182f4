"""A replay request: the messages of some keys of a stream between two times, for one target.

`parse_request` checks the JSON form, which the HTTP API, the command line and a DAG's form share:

    {"stream": "flights", "keys": ["AA1", {"base64": "AAEC"}], "from": "2026-11-22T10:00:00Z",
     "to": "2026-11-22T11:00:00+00:00", "target": {"type": "webhook", "url": "https://example.org/missed"}}

Times are Kafka's timestamps of the messages, which have milliseconds. A bound between two milliseconds is rounded up,
which selects the same messages.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar

from waybill.base.documents import As, Document, Stored
from waybill.base.errors import ConfigError, ReplayRefused
from waybill.config.models import Config
from waybill.config.models.quantities import format_duration
from waybill.config.models.replay import Replay
from waybill.config.names import Extension
from waybill.replay.requests.targets import Target, parse_target, read_target, shown

MAX_KEYS = 100
MAX_KEY_BYTES = 4096
MAX_PRIORITY = 9
_MAX_REQUESTER_CHARACTERS = 200
_MAX_STREAM_CHARACTERS = 100
_MAX_TIME_CHARACTERS = 64
_FIELDS = ("stream", "keys", "from", "to", "target", "priority")
_REQUIRED = ("stream", "keys", "from", "to", "target")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

# Crockford's Base32: without I, L, O and U. See https://github.com/ulid/spec.
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ID = re.compile(f"[0-7][{_DIGITS}]{{25}}")
_RANDOM_BITS = 80
_MAX_ID_MS = (1 << 48) - 1


_KEYS = As("", lambda keys: tuple(map(_read_key, keys)), lambda keys: list(map(_key_document, keys)))


@dataclass(frozen=True, slots=True)
class Requested(Stored):
    """The content of a request, in the form that `parse_request` reads. It never changes.

    A stored request is read without checks, since the config may have changed.
    """

    DOCUMENT: ClassVar = Document(
        "{where} is damaged ({error!r}): restore its row from a backup of the database, or delete the row and create "
        "the request again",
        converts=True,
    )

    stream: str
    keys: Annotated[tuple[bytes, ...], _KEYS]
    """The distinct keys, sorted."""
    from_ms: Annotated[int, As("from", _read_time, time_text_of)]
    """The first Kafka timestamp of the range, in epoch ms."""
    to_ms: Annotated[int, As("to", _read_time, time_text_of)]
    """The first Kafka timestamp after the range, in epoch ms."""
    target: Annotated[Target, As("", read_target, lambda target: target.document())]
    priority: int = 0
    """From 0 to `MAX_PRIORITY`; requests with a higher priority are served first."""

    def fingerprint(self) -> str:
        """Return a text that is equal for equal requests, and different for others."""
        return hashlib.sha256(json.dumps(self.to_fields(), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A request with the facts that the database stores at its creation."""

    id: str
    """Sorts by the time of creation."""
    requested: Requested
    requester: str
    created_at_ms: int


def parse_request(config: Config, value: Any, now_ms: int) -> Requested:
    """Return the request of a JSON value, checked against the config.

    Raises `ReplayRefused`, which names the field, the value and the remedy; `ConfigError` if replay is off.
    """
    replay = replay_of(config)
    if not isinstance(value, Mapping):
        raise ReplayRefused(f"a request is a mapping with the fields {', '.join(_REQUIRED)}")
    for field in value:
        if field not in _FIELDS:
            raise ReplayRefused(f"a request has no field {shown(field)}, but: {', '.join(_FIELDS)}")
    for field in _REQUIRED:
        if field not in value:
            raise ReplayRefused("is missing", field)
    stream = _stream(config, value["stream"])
    from_ms, to_ms = _range(value["from"], value["to"], replay.max_range, now_ms)
    return Requested(
        stream=stream,
        keys=_keys(value["keys"]),
        from_ms=from_ms,
        to_ms=to_ms,
        target=parse_target(value["target"], config, replay, stream),
        priority=_priority(value.get("priority", 0)),
    )


def replay_of(config: Config) -> Replay:
    """Return the config's section `replay`. Raises `ConfigError` if there is none."""
    if config.replay is None:
        raise ConfigError("replay is off: add the section `replay:` to the config (docs/config-reference.md)")
    return config.replay


def check_requester(name: str) -> str:
    """Return the name of a requester. Raises `ReplayRefused` if it cannot be one."""
    if not name.strip() or not name.isprintable() or len(name) > _MAX_REQUESTER_CHARACTERS:
        raise ReplayRefused(
            f"{name[:80]!r} is no name: give 1 to {_MAX_REQUESTER_CHARACTERS} printable characters", "requester"
        )
    return name


# --- ids --------------------------------------------------------------------------------------------------------------


def new_request_id(now_ms: int) -> str:
    """Return a new id: a ULID, 26 characters of [0-9A-Z], which sorts by `now_ms`."""
    return _encode((_checked_ms(now_ms) << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS))


def first_id_of(at_ms: int) -> str:
    """Return the lowest id that a request of that time can have."""
    return _encode(_checked_ms(at_ms) << _RANDOM_BITS)


def check_request_id(text: str) -> str:
    """Return the id in upper case. Raises `ReplayRefused` if no request can have it."""
    if not _ID.fullmatch(text.upper()):
        raise ReplayRefused(f"{text[:80]!r} is no id of a replay request: see `waybill replay ls`", "id")
    return text.upper()


def _checked_ms(at_ms: int) -> int:
    return min(max(at_ms, 0), _MAX_ID_MS)


def _encode(number: int) -> str:
    return "".join(_DIGITS[number >> shift & 31] for shift in range(125, -1, -5))


# --- fields -----------------------------------------------------------------------------------------------------------


def _stream(config: Config, value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_STREAM_CHARACTERS:
        raise ReplayRefused(f"{shown(value)} must be the name of a stream, as text", "stream")
    try:
        stream = config.stream(value)
    except ConfigError as error:
        raise ReplayRefused(str(error), "stream") from None
    if stream.format.extension is not Extension.KAFKA:
        raise ReplayRefused(
            f"{value!r} is archived in the format {stream.format.name}, which keeps no timestamps; a replay needs the "
            f"format `kafka`",
            "stream",
        )
    return value


def _keys(value: Any) -> tuple[bytes, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ReplayRefused(f"must be a list of 1 to {MAX_KEYS} message keys", "keys")
    if len(value) > MAX_KEYS:
        raise ReplayRefused(
            f"has {len(value):,} keys, and one request may have {MAX_KEYS}: send several requests", "keys"
        )
    return tuple(sorted({_key(key, f"keys[{number}]") for number, key in enumerate(value)}))


def _key(value: Any, at: str) -> bytes:
    try:
        key = _read_key(value)
    except (ValueError, TypeError, binascii.Error):
        raise ReplayRefused('must be text, or {"base64": "…"} with Base64 of the key\'s bytes', at) from None
    if len(key) > MAX_KEY_BYTES:
        raise ReplayRefused(f"has {len(key):,} bytes, more than {MAX_KEY_BYTES:,}", at)
    return key


def _read_key(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()  # a lone surrogate raises UnicodeEncodeError, a ValueError
    if not isinstance(value, Mapping) or value.keys() != {"base64"} or not isinstance(value["base64"], str):
        raise ValueError("neither text nor Base64")
    return base64.b64decode(value["base64"], validate=True)


def _key_document(key: bytes) -> str | dict[str, str]:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(key).decode()}


def _priority(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_PRIORITY:
        raise ReplayRefused(f"must be a whole number from 0 to {MAX_PRIORITY}, the highest", "priority")
    return value


# --- times ------------------------------------------------------------------------------------------------------------


def _range(from_value: Any, to_value: Any, max_range: timedelta, now_ms: int) -> tuple[int, int]:
    from_ms, to_ms = _time(from_value, "from"), _time(to_value, "to")
    if from_ms == to_ms:
        raise ReplayRefused(f"{to_value!r} is also `from`, so the range is empty: `to` is not included", "to")
    if from_ms > to_ms:
        raise ReplayRefused(f"{to_value!r} is before `from` ({from_value}): exchange them", "to")
    if to_ms > now_ms:
        field, value = ("from", from_value) if from_ms >= now_ms else ("to", to_value)
        raise ReplayRefused(
            f"{value!r} is in the future: a range must end at {time_text_of(now_ms)} (now) or before", field
        )
    if to_ms - from_ms > max_range // _MILLISECOND:
        raise ReplayRefused(
            f"the range from {from_value} to {to_value} is longer than {format_duration(max_range)} "
            f"(replay.max_range): send several requests",
            "to",
        )
    return from_ms, to_ms


def _time(value: Any, field: str) -> int:
    try:
        # Not numbers: 1764000000 could be seconds or, cut off, milliseconds.
        is_text = isinstance(value, str) and len(value) <= _MAX_TIME_CHARACTERS
        at = datetime.fromisoformat(value.strip()) if is_text else None
    except ValueError:
        at = None
    if at is None:
        raise ReplayRefused(f"{shown(value)} is no ISO 8601 time: write it as 2026-11-22T10:00:00Z", field)
    if at.tzinfo is None:
        raise ReplayRefused(f"{value!r} has no time zone: write {at.isoformat()}Z, or +01:00 at its end", field)
    try:
        moment = _epoch_ms(at)
    except OverflowError:
        moment = -1
    if moment < 0:
        raise ReplayRefused(f"{value!r} is before 1970", field)
    return moment


def _read_time(text: str) -> int:
    return _epoch_ms(datetime.fromisoformat(text))


def _epoch_ms(at: datetime) -> int:
    return -((_EPOCH - at) // _MILLISECOND)  # rounded up


def time_text_of(at_ms: int) -> str:
    """Return a time in epoch ms as text: `2026-01-31T00:00:00.000Z`."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
