"""Drop duplicates within one replay request: messages with an id that was delivered before, also after a restart.

A producer that repeats a send, or a job that runs twice, writes a message twice, at different offsets. The id is what
the stream's deduplication compares; the caller computes it. Assumption: a request's messages come in the same order
each time they are read, so "the first one" is always the same message.

**Exact.** For each id, the place (topic-partition and offset) of its first message is kept, not only its hash. So a
message that is read again after a restart is recognized as that first one, and the cursor decides whether it is
delivered again; only another message with the id is a duplicate. For the same reason, the stored state may be ahead of
the cursor, because a worker died in between, or because two workers stored their states. Two different ids have the
same hash of 128 bits with a probability below 10^-26 for a million ids.

**Bounded.** The first `limit` different ids of a request are kept. A message with an id that came later is never a
duplicate. Removing the oldest ids instead would find more duplicates of a long request, but then a worker that starts
with a state ahead of its cursor would decide differently about some messages, and the exactly-once targets rely on the
same decisions each time.

**Storing.** `changes()` returns the new ids since the last call, which are stored as one object, and `add_stored` reads
these objects in the order of their names. Store the changes *before* the cursor, or duplicates of the messages in
between are missed.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

from waybill.base.errors import DocumentDamaged, DocumentTooNew
from waybill.config.names import TopicPartition

DEFAULT_LIMIT = 200_000
"""About 50 MB of memory, and 6 MB of stored state."""

_MAGIC = b"WBSEEN"
_VERSION = 1
_HEAD = struct.Struct(">6sHHI")  # magic, version, number of topics, number of entries
_ENTRY = struct.Struct(">16sHiq")  # hash of the id, number of the topic, partition, offset
_CHECKSUM_BYTES = 16
ENTRY_BYTES = _ENTRY.size

_Place = tuple[str, int, int]


class SeenIds:
    """The ids of the first different messages of one request."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        """`limit`: how many ids are kept; at least 1."""
        if limit < 1:
            raise ValueError(f"limit {limit} is below 1")
        self._limit = limit
        self._places: dict[bytes, _Place] = {}
        self._changed: dict[bytes, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def is_duplicate(self, message_id: bytes, topic_partition: TopicPartition, offset: int) -> bool:
        """Return whether an earlier message has this id. If not, store the id, unless there are `limit` ids already."""
        digest = hashlib.blake2b(message_id, digest_size=16).digest()
        place = (topic_partition.topic, topic_partition.partition, offset)
        first = self._places.get(digest)
        if first is not None:
            return first != place
        if self._remember(digest, place):
            self._changed[digest] = place
        return False

    def changes(self) -> bytes | None:
        """Return the new ids since the last call, for `add_stored`; None if there are none."""
        if not self._changed:
            return None
        data = _encode(self._changed)
        self._changed = {}
        return data

    def add_stored(self, stored: Iterable[tuple[str, bytes]]) -> None:
        """Add the ids of stored changes: pairs of a name (for errors) and the bytes.

        Raises `DocumentDamaged` or `DocumentTooNew` for bytes that this version of Waybill cannot read. The check is
        necessary: with a wrong place, Waybill would drop a message that is not a duplicate.
        """
        for name, data in stored:
            for digest, place in _decode(name, data):
                if digest not in self._places:
                    self._remember(digest, place)

    def _remember(self, digest: bytes, place: _Place) -> bool:
        if len(self._places) >= self._limit:
            return False
        self._places[digest] = place
        return True


def _encode(entries: dict[bytes, _Place]) -> bytes:
    topics: dict[str, int] = {}
    for topic, _, _ in entries.values():
        topics.setdefault(topic, len(topics))
    names = [topic.encode() for topic in topics]
    body = b"".join(
        (
            _HEAD.pack(_MAGIC, _VERSION, len(names), len(entries)),
            *(bytes([len(name)]) + name for name in names),  # Kafka's topics have up to 249 ASCII characters
            *(
                _ENTRY.pack(digest, topics[topic], partition, offset)
                for digest, (topic, partition, offset) in entries.items()
            ),
        )
    )
    return body + hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest()


def _decode(name: str, data: bytes) -> list[tuple[bytes, _Place]]:
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if len(body) < _HEAD.size or hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest() != checksum:
        raise DocumentDamaged(f"{name} holds the ids of delivered messages, and its checksum is wrong")
    magic, version, topic_count, count = _HEAD.unpack_from(body)
    if magic != _MAGIC:
        raise DocumentDamaged(f"{name} does not hold the ids of delivered messages")
    if version > _VERSION:
        raise DocumentTooNew(f"{name} was written by a newer Waybill (version {version}). Upgrade this installation")
    topics, position = [], _HEAD.size
    for _ in range(topic_count):
        length = body[position]
        topics.append(body[position + 1 : position + 1 + length].decode())
        position += 1 + length
    entries = list(_ENTRY.iter_unpack(body[position:]))
    if len(entries) != count:
        raise DocumentDamaged(f"{name} holds {len(entries)} ids, and its head counts {count}")
    return [(digest, (topics[topic], partition, offset)) for digest, topic, partition, offset in entries]
