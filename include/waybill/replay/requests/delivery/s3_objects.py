"""Delivery to objects in the archive's bucket: JSON lines in numbered parts, each message exactly once.

    <prefix>/replays/<request>/part-00000.jsonl.gz      the first messages
    <prefix>/replays/<request>/part-00001.jsonl.gz      the messages that follow
    <prefix>/replays/<request>/manifest.json            the parts, when all are there

Assumption: the messages of a request come in the same order each time they are read. Part 0 begins at the first
message, and each other part where the previous one ends, so a part is a range of that order.

Each part is created if absent, so S3 decides which worker was first. A worker may find that its part exists, because an
earlier worker was killed before its cursor was stored, or because a rival was faster. Then it reads the number of
messages in the part from its metadata, and continues after them. So it does not matter whether it would have divided or
compressed the messages in the same way.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import cramjam
import orjson

from waybill.base.errors import DocumentDamaged, ObjectExists, ObjectMissing
from waybill.config.connections import S3Endpoint
from waybill.config.names import replay_manifest_key, replay_part_prefix, replay_prefix
from waybill.replay.requests.delivery.batches import message_json
from waybill.replay.requests.message import ReplayedMessage
from waybill.replay.requests.targets import ObjectCompression
from waybill.services.clients.s3 import s3_client
from waybill.services.store import Description, ListedObject

_EXTENSIONS = {ObjectCompression.GZIP: ".gz", ObjectCompression.ZSTD: ".zst", ObjectCompression.NONE: ""}
_ZSTD_LEVEL, _GZIP_LEVEL = 3, 6
_VERSION = 1
PART_MESSAGES = 1_000_000
PART_BYTES = 64 << 20
"""JSON lines before compression; a part is built in memory."""


class Objects(Protocol):
    """The methods of `waybill.services.store.Store` that this module uses."""

    bucket: str
    prefix: str

    def create_if_absent(self, key: str, data: bytes, metadata: dict[str, str] | None = None) -> None: ...

    def create_or_read_existing(self, key: str, data: bytes) -> bytes | None: ...

    def describe(self, key: str) -> Description: ...

    def list_objects(self, prefix: str) -> Iterator[ListedObject]: ...


@dataclass(frozen=True, slots=True)
class ExistingPart:
    """A part that exists. The next part begins after its messages."""

    number: int
    key: str
    messages: tuple[ReplayedMessage, ...]
    was_there: bool
    """Whether an earlier worker or a rival created it."""


class RequestObjects:
    """The objects of one request."""

    def __init__(self, store: Objects, request_id: str, compression: ObjectCompression) -> None:
        self._store = store
        self._request_id = request_id
        self._compression = compression
        self._prefix = replay_prefix(store.prefix, request_id)

    def part_key(self, number: int) -> str:
        """Return the key of a part."""
        prefix = replay_part_prefix(self._store.prefix, self._request_id)
        return f"{prefix}{number:05}.jsonl{_EXTENSIONS[self._compression]}"

    @property
    def manifest_key(self) -> str:
        """The key of the manifest."""
        return replay_manifest_key(self._store.prefix, self._request_id)

    def create_part(self, number: int, messages: list[ReplayedMessage], lines: list[bytes]) -> int | None:
        """Create a part, unless it exists.

        Return None if it was created, else the number of messages in the existing part.

        Raises `DocumentDamaged` if the part that exists does not begin with the same message.
        """
        key = self.part_key(number)
        metadata = {
            "waybill-v": str(_VERSION),
            "messages": str(len(messages)),
            "first": messages[0].place,
            "last": messages[-1].place,
        }
        try:
            self._store.create_if_absent(key, _compress(b"".join(lines), self._compression), metadata)
        except ObjectExists:
            found = self._store.describe(key).metadata
            if found.get("first") != messages[0].place or not found.get("messages", "").isdecimal():
                raise DocumentDamaged(
                    f"{key} begins with {found.get('first', 'an unknown message')}, and {messages[0].place} is "
                    f"expected: it belongs to another delivery. Remove the objects below {self._prefix}, and request "
                    f"again"
                ) from None
            return int(found["messages"])
        return None

    def count_messages(self, number: int) -> int:
        """Return how many messages a part has; 0 if it does not exist."""
        try:
            return int(self._store.describe(self.part_key(number)).metadata.get("messages", "0"))
        except ObjectMissing:
            return 0

    def check_end(self, number: int, last: ReplayedMessage | None) -> None:
        """Raise `DocumentDamaged` unless the part that exists ends with this message."""
        found = self._store.describe(self.part_key(number)).metadata.get("last")
        if last is None or found != last.place:
            raise DocumentDamaged(
                f"{self.part_key(number)} ends with {found}, and the messages that are read now do not "
                f"({'there are fewer' if last is None else last.place}): they have changed since it was written"
            )

    def finish(self, part_count: int) -> dict[str, Any]:
        """Create the manifest, unless it exists, and return it.

        `part_count`: how many parts the request has. A slower worker finds the same manifest.
        """
        parts: list[dict[str, Any]] = []
        for number in range(part_count):
            key = self.part_key(number)
            found = self._store.describe(key)
            parts.append(
                {
                    "key": key,
                    "messages": int(found.metadata["messages"]),
                    "bytes": found.size_bytes,
                    "first": found.metadata["first"],
                    "last": found.metadata["last"],
                }
            )
        manifest = {
            "v": _VERSION,
            "request": self._request_id,
            "compression": str(self._compression),
            "messages": sum(part["messages"] for part in parts),
            "parts": parts,
        }
        existing = self._store.create_or_read_existing(self.manifest_key, json.dumps(manifest, indent=1).encode())
        return manifest if existing is None else dict(json.loads(existing))

    def links(self, endpoint: S3Endpoint, lifetime: timedelta) -> list[str]:
        """Return presigned URLs of the manifest and of all parts, in order, which anybody can read for `lifetime`.

        They expire earlier if the credentials that sign them do. They are secrets, so they are made only to be shown,
        and are not stored.
        """
        keys = [self.manifest_key, *self._part_keys()]
        return _presign(endpoint, self._store.bucket, keys, lifetime)

    def _part_keys(self) -> list[str]:
        prefix = replay_part_prefix(self._store.prefix, self._request_id)
        return sorted(found.key for found in self._store.list_objects(prefix))


def deliver_objects(
    objects: RequestObjects,
    messages: Iterable[ReplayedMessage],
    first_part: int,
    *,
    part_messages: int = PART_MESSAGES,
    part_bytes: int = PART_BYTES,
) -> Iterator[ExistingPart]:
    """Create the parts of `messages`, numbered from `first_part`, and yield each when it exists.

    The first message is the one after part `first_part - 1`. Store the cursor after each part that is yielded. Raises
    `DocumentDamaged` if a part exists that cannot be of this delivery.
    """
    source = iter(messages)
    pending: deque[tuple[ReplayedMessage, bytes]] = deque()
    for number in itertools.count(first_part):
        taken = _take(pending, source, part_messages, part_bytes)
        if not taken:
            return
        existing = objects.create_part(number, [message for message, _ in taken], [line for _, line in taken])
        if existing is not None:
            taken = _align(objects, number, taken, existing, pending, source)
        yield ExistingPart(
            number, objects.part_key(number), tuple(message for message, _ in taken), existing is not None
        )


def _take(
    pending: deque[tuple[ReplayedMessage, bytes]], source: Iterator[ReplayedMessage], limit: int, limit_bytes: int
) -> list[tuple[ReplayedMessage, bytes]]:
    taken: list[tuple[ReplayedMessage, bytes]] = []
    size_bytes = 0
    while len(taken) < limit and size_bytes < limit_bytes:
        if pending:
            taken.append(pending.popleft())
        elif (message := next(source, None)) is not None:
            taken.append((message, _line(message)))
        else:
            break
        size_bytes += len(taken[-1][1])
    return taken


def _align(
    objects: RequestObjects,
    number: int,
    taken: list[tuple[ReplayedMessage, bytes]],
    existing: int,
    pending: deque[tuple[ReplayedMessage, bytes]],
    source: Iterator[ReplayedMessage],
) -> list[tuple[ReplayedMessage, bytes]]:
    """Return the messages of the existing part. Messages that were read beyond it are kept for the next part."""
    pending.extendleft(reversed(taken[existing:]))
    taken = taken[:existing]
    if len(taken) < existing:
        missing = existing - len(taken)
        taken += _take(pending, source, missing, 1 << 62)
    objects.check_end(number, taken[-1][0] if len(taken) == existing else None)
    return taken


def _presign(endpoint: S3Endpoint, bucket: str, keys: list[str], lifetime: timedelta) -> list[str]:
    from botocore.config import Config

    # A separate client: by default, botocore presigns with Signature Version 2, which many stores, and objects
    # encrypted with KMS, refuse.
    client = s3_client(
        endpoint,
        Config(signature_version="s3v4", s3={"addressing_style": "path" if endpoint.endpoint_url else "auto"}),
    )
    try:
        seconds = int(lifetime.total_seconds())
        return [
            client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=seconds)
            for key in keys
        ]
    finally:
        client.close()


def _line(message: ReplayedMessage) -> bytes:
    return orjson.dumps(message_json(message), option=orjson.OPT_APPEND_NEWLINE)


def _compress(data: bytes, compression: ObjectCompression) -> bytes:
    match compression:
        case ObjectCompression.GZIP:
            return gzip.compress(data, _GZIP_LEVEL, mtime=0)
        case ObjectCompression.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))
        case ObjectCompression.NONE:
            return data
