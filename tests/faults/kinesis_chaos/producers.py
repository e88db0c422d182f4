"""Producers of a Kinesis stream, and a thread that splits and merges its shards in the meantime.

A key has one hash: its own, or an explicit one that it always has. So its records are in one line of shards.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

import boto3
from aws_kinesis_agg.aggregator import RecordAggregator
from botocore.config import Config as BotoConfig
from botocore.exceptions import BotoCoreError, ClientError

from devstack.kinesis import REGION

_HASHES = 1 << 128
_ACTIVE_SECONDS = 20.0
_SLOWLY_SECONDS = 0.25


class PutKind(StrEnum):
    """How records are put."""

    ONE = "PutRecord"
    HASHED = "PutRecord with explicit hash keys"
    MANY = "PutRecords"
    AGGREGATED = "KPL aggregates"


@dataclass(frozen=True)
class PutPlan:
    """The records that a producer puts."""

    name: str
    kind: PutKind
    records: int
    keys: int
    burst: int
    """Records of a call of PutRecords, or of an aggregate."""
    pause_seconds: float
    value_bytes: int
    seed: int


@dataclass(frozen=True)
class ReshardPlan:
    """The plan for splits and merges."""

    changes: int
    """Splits and merges, at most."""
    pause_seconds: float
    open_shards: int
    """It merges above so many, and splits below."""
    newest_first: float
    """How often a shard is chosen that has just been created."""
    seed: int
    name: str = "re-shards"


@dataclass
class PutLog:
    """The outcomes of the records, and the changes of the shards."""

    put: int = 0
    """User records, each counted once."""
    acknowledged: set[tuple[str, int, bytes]] = field(default_factory=set)
    """Shard, sequence number and data of each user record."""
    unknown: int = 0
    """Records without an answer: Kinesis may hold them."""
    done: Counter[str] = field(default_factory=Counter)
    """Splits and merges."""

    def merge(self, other: PutLog) -> None:
        self.put += other.put
        self.acknowledged |= other.acknowledged
        self.unknown += other.unknown
        self.done.update(other.done)


def kinesis_client(endpoint_url: str) -> Any:
    """Return boto3's client, which tries again."""
    return boto3.client(
        "kinesis",
        endpoint_url=endpoint_url,
        region_name=REGION,
        aws_access_key_id="chaos",
        aws_secret_access_key="chaos",
        config=BotoConfig(retries={"mode": "standard", "total_max_attempts": 8}, read_timeout=20, proxies={}),
    )


def put(plan: PutPlan, client: Any, stream: str, *, more: Callable[[], bool], stop: threading.Event) -> PutLog:
    """Put all records, and then slowly as long as `more` says. If a call fails permanently, its outcome is unknown."""
    producer = _Producer(plan, client, stream)
    while not stop.is_set() and (producer.number < plan.records or more()):
        try:
            producer.burst()
        except (ClientError, BotoCoreError):
            producer.log.unknown += 1
        time.sleep(plan.pause_seconds if producer.number < plan.records else _SLOWLY_SECONDS)
    producer.log.put = producer.number
    return producer.log


class _Producer:
    def __init__(self, plan: PutPlan, client: Any, stream: str) -> None:
        self._plan, self._client, self._stream = plan, client, stream
        self._rng = random.Random(plan.seed)
        self._hashes = [self._rng.randrange(_HASHES) for _ in range(plan.keys)]
        self.number = 0
        self.log = PutLog()

    def burst(self) -> None:
        {
            PutKind.ONE: self._one,
            PutKind.HASHED: self._one,
            PutKind.MANY: self._many,
            PutKind.AGGREGATED: self._aggregate,
        }[self._plan.kind]()

    def _next(self) -> tuple[str, int, bytes]:
        """Key, its explicit hash, and data."""
        number, plan = self.number, self._plan
        self.number += 1
        key = number % plan.keys
        return f"{plan.name}-{key}", self._hashes[key], f"{plan.name}:{number}:".encode().ljust(plan.value_bytes, b".")

    def _one(self) -> None:
        for _ in range(self._plan.burst):
            key, hashed, data = self._next()
            more = {"ExplicitHashKey": str(hashed)} if self._plan.kind is PutKind.HASHED else {}
            self._acknowledge(self._put_record(PartitionKey=key, Data=data, **more), data)

    def _many(self) -> None:
        left = [{"PartitionKey": key, "Data": data} for key, _, data in (self._next() for _ in range(self._plan.burst))]
        while left:
            answers = self._client.put_records(StreamName=self._stream, Records=left).get("Records")
            if answers is None:
                continue
            for entry, answer in zip(left, answers, strict=True):
                if "SequenceNumber" in answer:
                    self._acknowledge(answer, entry["Data"])
            left = [e for e, answer in zip(left, answers, strict=True) if "SequenceNumber" not in answer]
            if left:
                time.sleep(0.1)

    def _aggregate(self) -> None:
        """All keys of this producer have one hash, so an aggregate belongs to one line of shards."""
        aggregator, hashed = RecordAggregator(), str(self._hashes[0])
        records = [self._next() for _ in range(self._plan.burst)]
        for key, _, data in records:
            assert aggregator.add_user_record(key, data, hashed) is None
        key, _, packed = aggregator.clear_and_get().get_contents()
        answer = self._put_record(PartitionKey=key, ExplicitHashKey=hashed, Data=packed)
        for _, _, data in records:
            self._acknowledge(answer, data)

    def _put_record(self, **record: Any) -> Any:
        """Put a record. botocore returns an answer that was cut as one without fields: then put it again."""
        while "SequenceNumber" not in (answer := self._client.put_record(StreamName=self._stream, **record)):
            pass
        return answer

    def _acknowledge(self, answer: Any, data: bytes) -> None:
        self.log.acknowledged.add((answer["ShardId"], int(answer["SequenceNumber"]), data))


# --- shards ---


def reshard(plan: ReshardPlan, client: Any, stream: str, *, more: Callable[[], bool], stop: threading.Event) -> PutLog:
    """Split and merge shards, as long as `more` says, and at most as often as the plan says."""
    rng, log = random.Random(plan.seed), PutLog()
    while not stop.is_set() and more() and log.done.total() < plan.changes:
        try:
            done = _change(plan, rng, client, stream)
            _wait_until_active(client, stream)
        except (ClientError, BotoCoreError):
            done = ""
        if done:
            log.done[done] += 1
        stop.wait(plan.pause_seconds)
    return log


def _change(plan: ReshardPlan, rng: random.Random, client: Any, stream: str) -> str:
    listed = client.list_shards(StreamName=stream)["Shards"]
    closed = {each["ShardId"] for each in listed if "EndingSequenceNumber" in each["SequenceNumberRange"]}
    opened = sorted((each for each in listed if each["ShardId"] not in closed), key=_first_hash)
    newest = rng.random() < plan.newest_first
    if len(opened) > rng.randint(1, plan.open_shards):
        pairs = list(pairwise(opened))
        youngest = max(pairs, key=lambda pair: max(pair[0]["ShardId"], pair[1]["ShardId"]))
        left, right = youngest if newest else rng.choice(pairs)
        left, right = rng.sample((left, right), 2)
        client.merge_shards(StreamName=stream, ShardToMerge=left["ShardId"], AdjacentShardToMerge=right["ShardId"])
        return "merges"
    shard = max(opened, key=lambda each: str(each["ShardId"])) if newest else rng.choice(opened)
    first, last = _first_hash(shard), int(shard["HashKeyRange"]["EndingHashKey"])
    if last - first < 1 << 64:
        return ""
    middle = first + (last - first) * rng.randint(1, 9) // 10
    client.split_shard(StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle))
    return "splits"


def _first_hash(shard: Any) -> int:
    return int(shard["HashKeyRange"]["StartingHashKey"])


def _wait_until_active(client: Any, stream: str) -> None:
    deadline = time.monotonic() + _ACTIVE_SECONDS
    while time.monotonic() < deadline:
        if client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE":
            return
        time.sleep(0.03)
