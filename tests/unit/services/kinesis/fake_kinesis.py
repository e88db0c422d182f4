"""A Kinesis stream in memory, in place of botocore's client, and a clock that only sleep moves."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.exceptions import ClientError

from waybill.config.connections import KinesisEndpoint
from waybill.records.shards.lineage import Shard
from waybill.services.kinesis import KinesisSource, ShardLimits, ShardReader
from waybill.services.kinesis.answers import PARSED, ParsedRecords, RawRecord

STREAM = "orders"
SHARD = "shardId-000000000000"
FIRST_SEQUENCE = 49680510334066078125161334800747181671462721233197465602
_FIRST_MS = 1_700_000_000_000


def error(code: str, action: str = "GetRecords", status: int = 400) -> ClientError:
    """Return an error answer as botocore raises it."""
    response: Any = {
        "Error": {"Code": code, "Message": "injected"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, action)


def raw(number: int, data: bytes = b"data", key: str | None = "key", encryption: str = "NONE") -> RawRecord:
    """Return the record with a number: its sequence number and arrival grow with it."""
    return RawRecord(FIRST_SEQUENCE + number, _FIRST_MS + number, key, data, encryption)


def raws(count: int) -> list[RawRecord]:
    return [raw(number, b"%d" % number) for number in range(count)]


def whole_shard(shard_id: str = SHARD) -> Shard:
    return Shard(shard_id, 0, (1 << 128) - 1, str(FIRST_SEQUENCE))


@dataclass
class FakeKinesis:
    """One shard's records, and answers to inject: an exception is raised, anything else is returned."""

    records: Sequence[RawRecord] = ()
    closed: bool = False
    listed_as_closed: bool | None = None
    per_answer: int = 3
    empty_answers: int = 0
    """So many answers at each position have no records, below the tip."""
    injected: dict[str, deque[Any]] = field(default_factory=lambda: defaultdict(deque))
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    time: float = 1000.0
    slept: list[float] = field(default_factory=list)
    _empty_given: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    # --- what tests use ---

    def source(self) -> KinesisSource:
        return KinesisSource(
            KinesisEndpoint(conn_id="aws_kinesis"), client=self, clock=lambda: self.time, sleep=self.sleep
        )

    def reader(self, limits: ShardLimits | None = None) -> ShardReader:
        return ShardReader(self.source(), STREAM, SHARD, limits=limits, now=lambda: _FIRST_MS / 1000 + self.time)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def inject(self, action: str, *answers: Any) -> None:
        self.injected[action] += answers

    def count(self, action: str) -> int:
        return sum(called == action for called, _ in self.calls)

    # --- botocore's client ---

    def close(self) -> None: ...

    def get_shard_iterator(self, **arguments: Any) -> dict[str, Any]:
        def answer() -> dict[str, Any]:
            kind, index = arguments["ShardIteratorType"], 0
            if kind == "AFTER_SEQUENCE_NUMBER":
                after = int(arguments["StartingSequenceNumber"])
                index = sum(each.sequence_number <= after for each in self.records)
            elif kind == "AT_TIMESTAMP":  # in whole seconds, as botocore sends it
                start_ms = (
                    int((arguments["Timestamp"] - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(seconds=1)) * 1000
                )
                index = sum(each.arrival_ms < start_ms for each in self.records)
            return {"ShardIterator": str(index)}

        return self._answer("GetShardIterator", arguments, answer)

    def get_records(self, **arguments: Any) -> dict[str, Any]:
        def answer() -> dict[str, Any]:
            index = int(arguments["ShardIterator"])
            if self._empty_given[index] < self.empty_answers:
                self._empty_given[index] += 1
                return {PARSED: ParsedRecords([], str(index), 1000)}
            end = min(index + min(self.per_answer, arguments["Limit"]), len(self.records))
            at_tip = end == len(self.records)
            following = None if at_tip and self.closed else str(end)
            return {PARSED: ParsedRecords(list(self.records[index:end]), following, 0 if at_tip else 1000)}

        return self._answer("GetRecords", arguments, answer)

    def list_shards(self, **arguments: Any) -> dict[str, Any]:
        def answer() -> dict[str, Any]:
            closed = self.closed if self.listed_as_closed is None else self.listed_as_closed
            sequences = {"StartingSequenceNumber": str(FIRST_SEQUENCE)}
            if closed:
                sequences["EndingSequenceNumber"] = str(FIRST_SEQUENCE + 1_000_000)
            hashes = {"StartingHashKey": "0", "EndingHashKey": str((1 << 128) - 1)}
            return {"Shards": [{"ShardId": SHARD, "HashKeyRange": hashes, "SequenceNumberRange": sequences}]}

        return self._answer("ListShards", arguments, answer)

    def list_streams(self, **arguments: Any) -> dict[str, Any]:
        return self._answer("ListStreams", arguments, lambda: {"StreamNames": [STREAM], "HasMoreStreams": False})

    def describe_stream_summary(self, **arguments: Any) -> dict[str, Any]:
        summary = {
            "StreamName": STREAM,
            "StreamARN": f"arn:aws:kinesis:us-east-1:123456789012:stream/{STREAM}",
            "StreamStatus": "ACTIVE",
            "StreamCreationTimestamp": datetime(2026, 1, 2, tzinfo=UTC),
            "RetentionPeriodHours": 48,
            "OpenShardCount": 1,
            "EncryptionType": "KMS",
            "FieldOfTheFuture": 1,
        }
        return self._answer("DescribeStreamSummary", arguments, lambda: {"StreamDescriptionSummary": summary})

    def _answer(self, action: str, arguments: dict[str, Any], answer: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        self.calls.append((action, arguments))
        if not self.injected[action]:
            return answer()
        injected = self.injected[action].popleft()
        if isinstance(injected, BaseException):
            raise injected
        result: dict[str, Any] = injected
        return result
