"""Batches of messages for webhooks: how they are cut, encoded and named.

Where a batch ends follows from the messages and the limits alone, not from time. So a worker that starts again at the
end of a delivered batch makes the same batches, and each has the same `Idempotency-Key` as before. With other limits,
batches end elsewhere and have other keys: no message is skipped, and receivers may get some messages again.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from waybill.replay.requests.message import ReplayedMessage

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one request to a webhook."""

    request_id: str
    number: int
    """The number of the batch in the replay request, from 0; the parts of a batch have its number."""
    messages: tuple[ReplayedMessage, ...]
    """At least one."""
    encoded: tuple[bytes, ...]
    """The JSON of each message."""

    @property
    def idempotency_key(self) -> str:
        """The key is the same for the same messages of the same request, whichever worker sends them.

        No other batch has it.
        """
        places = "\n".join(message.place for message in self.messages)
        return f"{self.request_id}-{self.number}-{hashlib.sha256(places.encode()).hexdigest()[:16]}"

    def body(self) -> bytes:
        """Return the body of the request."""
        head = orjson.dumps(
            {"v": _VERSION, "type": "messages", "request": self.request_id, "batch": self.number, "messages": []}
        )
        return b"".join((head[:-2], b",".join(self.encoded), b"]}"))

    def halves(self) -> tuple[Batch, Batch]:
        """Return the first and the second half. The batch has at least two messages."""
        middle = len(self.messages) // 2
        return self._part(slice(middle)), self._part(slice(middle, None))

    def _part(self, part: slice) -> Batch:
        return Batch(self.request_id, self.number, self.messages[part], self.encoded[part])


def cut_batches(
    messages: Iterable[ReplayedMessage], request_id: str, first_number: int, *, max_messages: int, max_bytes: int
) -> Iterator[Batch]:
    """Yield the messages in batches, in order, numbered from `first_number`.

    A batch has up to `max_messages` messages, and up to `max_bytes` of their JSON. A larger message is a separate
    batch.
    """
    number = first_number
    taken: list[ReplayedMessage] = []
    encoded: list[bytes] = []
    size_bytes = 0
    for message in messages:
        line = orjson.dumps(message_json(message))
        if taken and (len(taken) >= max_messages or size_bytes + len(line) > max_bytes):
            yield _batch(request_id, number, taken, encoded)
            number, taken, encoded, size_bytes = number + 1, [], [], 0
        taken.append(message)
        encoded.append(line)
        size_bytes += len(line) + 1
    if taken:
        yield _batch(request_id, number, taken, encoded)


def message_json(message: ReplayedMessage) -> dict[str, Any]:
    """Return a message in the form that webhooks and objects in S3 have.

    Bytes that are UTF-8 are a string, others `{"base64": "…"}`. Nothing else is an object, so the form is unambiguous.
    """
    return {
        "topic": message.topic_partition.topic,
        "partition": message.topic_partition.partition,
        "offset": message.offset,
        "timestamp": _time_text(message.timestamp_ms),
        "timestamp_ms": message.timestamp_ms,
        "key": _bytes_json(message.key),
        "value": _bytes_json(message.value),
        "headers": [{"name": _text_json(name), "value": _bytes_json(value)} for name, value in message.headers],
    }


def _batch(request_id: str, number: int, messages: Sequence[ReplayedMessage], encoded: Sequence[bytes]) -> Batch:
    return Batch(request_id, number, tuple(messages), tuple(encoded))


def _time_text(timestamp_ms: int) -> str | None:
    """Return a timestamp in ISO 8601; None for a message without one, and for years that ISO 8601 cannot write."""
    if timestamp_ms < 0:
        return None
    try:
        at = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _bytes_json(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _text_json(text: str) -> str | dict[str, str]:
    # A name that is not UTF-8 was decoded with "surrogateescape", and becomes its bytes again.
    return text if text.isascii() else _bytes_json(text.encode(errors="surrogateescape")) or ""
