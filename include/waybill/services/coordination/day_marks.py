"""Day marks: the committed offsets of all streams at the start of a day, with the counts of the offsets before them.

A committed offset and its counts are written together, so a copy of both divides a chain, and its counts, at any time.
The watch stores one for each day, from which the ledger calculates the balance of each day.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Self

import orjson

from waybill.base.documents import Document
from waybill.config.names import TopicPartition
from waybill.services.coordination.nodes import CommittedOffset, OffsetCounts

_DOCUMENT = Document(dump=lambda mark: gzip.compress(orjson.dumps(mark), mtime=0), unpack=gzip.decompress)


@dataclass(frozen=True, slots=True)
class MarkedOffset:
    """A committed offset, and the counts of the offsets before it; None: unknown."""

    offset: int
    counts: OffsetCounts | None = None


@dataclass(frozen=True, slots=True)
class StreamMark:
    """The committed offsets of one stream's generation at a time."""

    at_ms: int
    """Epoch ms."""
    offsets: Mapping[TopicPartition, MarkedOffset]


@dataclass(frozen=True, slots=True)
class DayMark:
    """The committed offsets of all streams at a time."""

    at_ms: int
    streams: Mapping[tuple[str, int], Mapping[TopicPartition, MarkedOffset]]
    """By the stream's name and its generation."""

    @classmethod
    def of(cls, at_ms: int, committed: Mapping[tuple[str, int], Mapping[TopicPartition, CommittedOffset]]) -> Self:
        """Return the mark of committed offsets that were read at a time."""
        marked = {
            stream: {tp: MarkedOffset(each.committed_offset, each.counts) for tp, each in offsets.items()}
            for stream, offsets in committed.items()
        }
        return cls(at_ms, marked)

    def of_stream(self, name: str, generation: int) -> StreamMark:
        """Return the mark of one stream; without offsets if it did not exist then."""
        return StreamMark(self.at_ms, self.streams.get((name, generation), {}))

    def content(self) -> bytes:
        """Return the document that `parse` reads: gzipped JSON."""
        streams = [
            {
                "stream": name,
                "generation": generation,
                "offsets": {
                    str(tp): [each.offset, *(() if each.counts is None else astuple(each.counts))]
                    for tp, each in offsets.items()
                },
            }
            for (name, generation), offsets in self.streams.items()
        ]
        return _DOCUMENT.write({"at": self.at_ms, "streams": streams})

    @classmethod
    def parse(cls, content: bytes, where: str) -> Self:
        """Read a document. `where` names it in errors: `DocumentTooNew`, `DocumentDamaged`."""
        fields = _DOCUMENT.read(content, where)
        streams = {
            (str(each["stream"]), int(each["generation"])): {
                TopicPartition.parse(tp): MarkedOffset(figures[0], OffsetCounts(*figures[1:]) if figures[1:] else None)
                for tp, figures in each["offsets"].items()
            }
            for each in fields["streams"]
        }
        return cls(int(fields["at"]), streams)
