"""The records of one shard, from a position on.

What this relies on: sequence numbers grow within a shard; GetRecords of the same iterator returns the same records, or
none of them once the iterator has expired; a shard whose NextShardIterator is null is closed. What it survives: expired
iterators, throttling, cut and repeated answers, and answers without records below the tip, which Kinesis gives where a
shard has no records for a while.

Kinesis allows five calls and 2 MB a second for each shard, and refuses calls for up to five seconds after an answer of
10 MB. The reader waits as long by itself, since a refused call counts as a call of all consumers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter, le
from typing import Any

from waybill.base.errors import KinesisUnavailable
from waybill.records.shards.checkpoint import PositionKind, ShardPosition
from waybill.services.kinesis.answers import PARSED, ParsedRecords, RawRecord
from waybill.services.kinesis.calls import KinesisAction, KinesisRefusal
from waybill.services.kinesis.client import KinesisSource, stream_argument

_MAX_RECORDS = 10_000
_ITERATOR_STARTS = 5
_EXPIRED = "ExpiredIteratorException"
_CLOCK_ERROR_SECONDS = 60
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_sequence_number = attrgetter("sequence_number")


@dataclass(frozen=True, slots=True)
class ShardLimits:
    """The part of a shard's quota that a reader uses; all consumers share the quota."""

    calls_per_second: float = 5.0
    bytes_per_second: float = 2e6


@dataclass(frozen=True, slots=True)
class ShardRead:
    """One answer of GetRecords."""

    records: list[RawRecord]
    """In order of their sequence numbers; none of them was in an earlier answer."""
    position: ShardPosition
    """The position after the records, with the time up to which the shard is read."""
    millis_behind: int
    """The lag: the distance from the end of the answer to the tip of the shard, in ms."""
    size_bytes: int
    """The size of data and partition keys, which counts towards the quota."""

    @property
    def is_at_tip(self) -> bool:
        """Whether the shard has no more records now. An answer without records need not be at the tip."""
        return self.millis_behind == 0 or self.position.is_ended


class ShardReader:
    """Reads one shard. Use it from one thread, and keep it between reads: it keeps track of the shard's quota."""

    def __init__(
        self,
        source: KinesisSource,
        stream: str,
        shard_id: str,
        *,
        limits: ShardLimits | None = None,
        max_records: int = _MAX_RECORDS,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`max_records` is that of one answer. `now` returns the time in seconds since 1970."""
        self._source = source
        self._stream = stream
        self._shard_id = shard_id
        self._limits = limits or ShardLimits()
        self._max_records = max_records
        self._now = now
        self._next_call_at = 0.0

    @property
    def where(self) -> str:
        """The shard's name in errors."""
        return f"shard {self._shard_id} of stream {self._stream!r}"

    def read(self, position: ShardPosition) -> Generator[ShardRead, None, None]:
        """Yield answer by answer from `position` on, until the tip or the shard's end was reached.

        For a shard without new records this makes two calls. It yields at least one answer, perhaps without records,
        unless the shard has already ended.

        Raises `KinesisUnavailable` or `ConfigError`. What was yielded before remains valid.
        """
        iterator: str | None = None
        starts = 0
        while not position.is_ended:
            if iterator is None:
                iterator = self._find_iterator(position)
                starts += 1
            self._wait()
            asked_ms = int(
                self._now() * 1000
            )  # the time before the call: records that arrive during the call may not be in the answer
            try:
                answer = self._get_records(iterator, self._max_records)
            except KinesisRefusal as error:
                if starts == _ITERATOR_STARTS:
                    raise KinesisUnavailable(
                        f"{self.where}: {starts} iterators, one after the other, have expired"
                    ) from error
                iterator = None
                continue
            starts = 0
            read = self._to_read(answer, position, asked_ms)
            position, iterator = read.position, answer.next_iterator
            yield read
            if read.is_at_tip:
                return

    def millis_behind(self, position: ShardPosition) -> int:
        """Return the lag of a position in ms, as Kinesis states it, with two calls that return at most one record."""
        for _ in range(_ITERATOR_STARTS):
            if position.is_ended:
                return 0
            try:
                return self._get_records(self._find_iterator(position), 1).millis_behind
            except KinesisRefusal:
                continue
        raise KinesisUnavailable(f"{self.where}: {_ITERATOR_STARTS} iterators, one after the other, have expired")

    def _to_read(self, answer: ParsedRecords, position: ShardPosition, asked_ms: int) -> ShardRead:
        records = _unread(answer.records, position)
        if records:
            position = position.after(str(records[-1].sequence_number))
        position = position.caught_up(max(asked_ms - answer.millis_behind, 0))
        if answer.next_iterator is None:
            self._check_closed()
            position = position.at_shard_end()
        return ShardRead(records, position, answer.millis_behind, _size_bytes(answer.records))

    def _check_closed(self) -> None:
        """Raise unless ListShards also lists the shard as closed: a lost field must not end an open shard."""
        shard = self._source.list_shards(self._stream, fresh=True).get(self._shard_id)
        if shard is not None and not shard.is_closed:
            raise KinesisUnavailable(
                f"{self.where}: GetRecords returned no next iterator, but ListShards lists the shard as open"
            )

    # --- calls ---

    def _get_records(self, iterator: str, limit: int) -> ParsedRecords:
        self._wait()
        arguments: dict[str, Any] = {"ShardIterator": iterator, "Limit": limit}
        if self._stream.startswith("arn:"):
            arguments["StreamARN"] = self._stream
        self._next_call_at = self._source.clock() + 1 / self._limits.calls_per_second
        answer: ParsedRecords = self._source.calls(self._stream).ask(
            KinesisAction.GET_RECORDS, self.where, arguments, required=(PARSED,), refusals=(_EXPIRED,)
        )[PARSED]
        pause = _size_bytes(answer.records) / self._limits.bytes_per_second
        self._next_call_at = max(self._next_call_at, self._source.clock() + pause)
        return answer

    def _wait(self) -> None:
        pause = self._next_call_at - self._source.clock()
        if pause > 0:
            self._source.sleep(pause)

    def _find_iterator(self, position: ShardPosition) -> str:
        arguments = {**stream_argument(self._stream), "ShardId": self._shard_id, **_start(position, self._now())}
        answer = self._source.calls(self._stream).ask(
            KinesisAction.GET_SHARD_ITERATOR, self.where, arguments, required=("ShardIterator",)
        )
        return str(answer["ShardIterator"])


def _start(position: ShardPosition, now: float) -> dict[str, Any]:
    if position.kind is PositionKind.AFTER_SEQUENCE:
        return {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": position.sequence}
    if position.kind is PositionKind.AT_SEQUENCE:
        return {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": position.sequence}
    if position.kind is PositionKind.AT_TIMESTAMP:
        # Kinesis refuses a time in the future by its own clock. `_unread` leaves out records that arrived too early.
        timestamp_ms = min(position.timestamp_ms, int((now - _CLOCK_ERROR_SECONDS) * 1000))
        return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": _EPOCH + timedelta(milliseconds=timestamp_ms)}
    return {"ShardIteratorType": "TRIM_HORIZON"}


def _size_bytes(records: list[RawRecord]) -> int:
    return sum(len(each.data) + len(each.partition_key or "") for each in records)


def _unread(records: list[RawRecord], position: ShardPosition) -> list[RawRecord]:
    """Return the records after `position`, each once, in order of their sequence numbers."""
    if not records:
        return records
    last = int(position.sequence or -1) - (position.kind is PositionKind.AT_SEQUENCE)
    numbers = list(map(_sequence_number, records))
    if numbers[0] <= last or any(map(le, numbers[1:], numbers)):
        found = {each.sequence_number: each for each in records if each.sequence_number > last}
        records = [found[number] for number in sorted(found)]
    if position.kind is PositionKind.AT_TIMESTAMP:
        # botocore sends the time in whole seconds, so the first records can be up to a second too early.
        first = next((i for i, each in enumerate(records) if not 0 <= each.arrival_ms < position.timestamp_ms), None)
        records = [] if first is None else records[first:]
    return records
