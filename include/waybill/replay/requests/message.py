"""A message that was read from the archive or from Kafka, for the target of a replay request."""

from __future__ import annotations

import struct
from typing import NamedTuple

from waybill.config.names import TopicPartition


class ReplayedMessage(NamedTuple):
    """A message as it was archived. Topic-partition and offset identify it."""

    topic_partition: TopicPartition
    offset: int
    timestamp_ms: int
    """Kafka's timestamp, in epoch ms; -1: the message has none."""
    key: bytes | None
    value: bytes | None
    """None: a tombstone."""
    headers: tuple[tuple[str, bytes | None], ...] = ()
    """In the order of the message; a name may occur more than once."""

    @property
    def place(self) -> str:
        """Return `topic/partition/offset`, which no other message has."""
        return f"{self.topic_partition}/{self.offset}"

    def content_id(self) -> bytes:
        """Return bytes that are equal for messages of one topic with the same timestamp, key, value and headers.

        A producer that repeats a send keeps all of them. They can be as long as the message.
        """
        parts = [self.topic_partition.topic.encode(), self.key, self.value]
        for name, value in self.headers:
            parts += [name.encode(errors="surrogateescape"), value]
        lengths = [-1 if part is None else len(part) for part in parts]
        head = struct.pack(f">q{len(parts)}q", self.timestamp_ms, *lengths)
        return head + b"".join(part for part in parts if part is not None)


class Piece(NamedTuple):
    """A part of a topic-partition that was read for a request: the wanted messages, and the end of the part."""

    messages: list[ReplayedMessage]
    """In order of offset; often empty."""
    next_offset: int
    """The range is read up to this offset."""
