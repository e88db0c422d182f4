"""A span: the part of one backup object that a task reads."""

from __future__ import annotations

from dataclasses import dataclass

from waybill.config.names import TopicPartition


@dataclass(frozen=True, slots=True)
class Span:
    """A range of one backup object: the messages with offsets in `[first_offset, next_offset)`."""

    tp: TopicPartition
    key: str
    first_offset: int
    next_offset: int
    size_bytes: int
    """Size of the whole object."""
