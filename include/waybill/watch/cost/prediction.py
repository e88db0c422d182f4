"""How many backup objects and requests a chain needs under other upload limits.

A listing shows size and time of each object. The prediction assumes that its bytes arrived at a constant rate between
the time of the previous object and its own time, but at most `max_age` before its own time. It also assumes that lanes
ran when the objects were created, and every minute in between. Each lane completes full objects, and the remaining
object when its oldest byte is `max_age` old, as ingest does (`waybill.archive.ingest.kafka.fetching`).

An object ends at a record batch, so it is a little smaller than `max_bytes`. The full objects that exist show how much
smaller.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from waybill.services.store import PART_BYTES

PASS_MS = 60_000
"""The time between two runs of ingest."""


@dataclass(frozen=True, slots=True)
class ObjectLimits:
    """The limits at which ingest completes an object."""

    max_bytes: int
    max_age_ms: int


@dataclass(frozen=True, slots=True)
class CostedObject:
    """A backup object of one chain: when it was created (epoch ms), and its size."""

    at_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """Objects, and requests that create them."""

    objects: int = 0
    requests: int = 0

    def __add__(self, other: Prediction) -> Prediction:
        return Prediction(self.objects + other.objects, self.requests + other.requests)


def upload_requests(size_bytes: int, part_bytes: int = PART_BYTES) -> int:
    """Return how many requests create an object of that size (`waybill.services.store.upload`).

    One PutObject; from the size of a part on, CreateMultipartUpload, an UploadPart for each part, and
    CompleteMultipartUpload.
    """
    return 1 if size_bytes < part_bytes else 2 + -(-size_bytes // part_bytes)


def predict(pieces: Iterable[CostedObject], first_ms: int, end_ms: int, *, is_indexed: bool = False) -> Prediction:
    """Return the objects that were created from `first_ms` to before `end_ms`, and the requests for them.

    `is_indexed`: each backup object has an index object, which is one more request.
    """
    found = [piece for piece in pieces if first_ms <= piece.at_ms < end_ms]
    return Prediction(len(found), sum(upload_requests(piece.size_bytes) + is_indexed for piece in found))


def recut(pieces: Sequence[CostedObject], now: ObjectLimits, other: ObjectLimits) -> Iterator[CostedObject]:
    """Yield the objects of a chain as other limits would have cut them.

    `pieces`: all objects of the chain, in order, which the limits `now` have cut. Bytes that would not be uploaded yet
    at the time of the last object are left out.
    """
    pieces = [piece for piece in pieces if piece.size_bytes > 0]
    if not pieces:
        return
    arrivals = _Arrivals(pieces, now)
    max_bytes = max(other.max_bytes - _missing_bytes(pieces, now), other.max_bytes // 2, 1)
    position = 0
    while position < arrivals.total_bytes:
        due = arrivals.time_of(position) + other.max_age_ms
        if position + max_bytes <= arrivals.total_bytes:
            due = min(due, arrivals.time_of(position + max_bytes))
        at = arrivals.next_pass(due)
        before = position
        while position == before:
            if at is None:
                return
            arrived = arrivals.bytes_until(at)
            while arrived - position >= max_bytes:
                yield CostedObject(at, max_bytes)
                position += max_bytes
            if arrived > position and arrivals.time_of(position) + other.max_age_ms <= at:
                yield CostedObject(at, arrived - position)
                position = arrived
            at = arrivals.next_pass(at + 1)


def _missing_bytes(pieces: Sequence[CostedObject], now: ObjectLimits) -> int:
    """Return by how many bytes a full object is smaller than `max_bytes`, because the next batch did not fit.

    An object is full if the next one followed in the same run of ingest.
    """
    full = [one.size_bytes for one, after in pairwise(pieces) if after.at_ms - one.at_ms < PASS_MS // 2]
    if not full:
        return 0
    return max(0, now.max_bytes - sum(full) // len(full))


class _Arrivals:
    """When each byte of a chain arrived, and when lanes ran."""

    def __init__(self, pieces: Sequence[CostedObject], now: ObjectLimits) -> None:
        longest = max(now.max_age_ms, PASS_MS)
        self._ends = [piece.at_ms for piece in pieces]
        before = [self._ends[0] - longest, *self._ends[:-1]]
        self._begins = [max(earlier, end - longest) for earlier, end in zip(before, self._ends, strict=True)]
        self._bytes = [0, *accumulate(piece.size_bytes for piece in pieces)]
        self.total_bytes = self._bytes[-1]

    def time_of(self, position: int) -> float:
        """Return when the byte before this position arrived.

        At the start of a piece, return when its first byte arrived.
        """
        number = min(bisect_right(self._bytes, position) - 1, len(self._ends) - 1)
        begin, end = self._begins[number], self._ends[number]
        size = self._bytes[number + 1] - self._bytes[number]
        return begin + (end - begin) * (position - self._bytes[number]) / size

    def bytes_until(self, at: float) -> int:
        """Return how many bytes had arrived at a time."""
        number = bisect_right(self._ends, at)
        if number == len(self._ends):
            return self.total_bytes
        begin, end = self._begins[number], self._ends[number]
        share = max(0.0, at - begin) / (end - begin) if end > begin else 0.0
        return self._bytes[number] + int((self._bytes[number + 1] - self._bytes[number]) * share)

    def next_pass(self, due: float) -> int | None:
        """Return when the first lane ran at or after that time; None if no lane did."""
        number = bisect_left(self._ends, due)
        if number == len(self._ends):
            return None
        end = self._ends[number]
        return end - int((end - due) // PASS_MS) * PASS_MS
