"""Helpers of the Kinesis tests: a stream of the emulator, its producers and re-shards, and plain readers of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config as BotoConfig

from devstack.kinesis import REGION, KinesisEmulator

if TYPE_CHECKING:
    import pytest
    from ingest_scenes import Archive

    from devstack import Stack

_SECONDS = 20.0
ENVIRONMENT = "AIRFLOW_CONN_KINESIS_TEST"


@dataclass(frozen=True)
class Put:
    """A record that Kinesis has acknowledged."""

    key: str
    data: bytes
    shard_id: str
    sequence: str


@dataclass(frozen=True)
class KinesisStream:
    """One stream of the emulator."""

    emulator: KinesisEmulator
    name: str

    @cached_property
    def client(self) -> Any:
        return boto3.client(
            "kinesis",
            endpoint_url=self.emulator.endpoint_url,
            region_name=REGION,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=BotoConfig(retries={"max_attempts": 10}),
        )

    @classmethod
    @contextmanager
    def created(cls, emulator: KinesisEmulator, name: str, shards: int) -> Iterator[KinesisStream]:
        """Create a stream, and delete it at the end."""
        stream = cls(emulator, name)
        stream.create(shards)
        try:
            yield stream
        finally:
            stream.delete()
            stream.client.close()

    @classmethod
    @contextmanager
    def connected(cls, stack: Stack, name: str, patch: pytest.MonkeyPatch, **extra: Any) -> Iterator[KinesisStream]:
        """Create a stream of two shards on the stack's emulator, and set the connection `kinesis_test`.

        `extra` is added to the connection's own.
        """
        emulator = stack.start_kinesis()
        connection: dict[str, Any] = dict(emulator.connection())
        connection["extra"] = {**connection["extra"], **extra}
        patch.setenv(ENVIRONMENT, json.dumps(connection))
        with cls.created(emulator, name, 2) as stream:
            yield stream

    def create(self, shards: int) -> None:
        self.client.create_stream(StreamName=self.name, ShardCount=shards)
        self.wait()

    def delete(self) -> None:
        self.client.delete_stream(StreamName=self.name)
        deadline = time.monotonic() + _SECONDS
        while self.name in self.client.list_streams()["StreamNames"]:
            assert time.monotonic() < deadline, f"{self.name} is not deleted"
            time.sleep(0.05)

    def wait(self) -> None:
        """Wait until the stream is active."""
        deadline = time.monotonic() + _SECONDS
        while self._summary()["StreamStatus"] != "ACTIVE":
            assert time.monotonic() < deadline, f"{self.name} is not active"
            time.sleep(0.05)

    def put(self, records: Iterable[tuple[str, bytes]]) -> list[Put]:
        """Put records one after the other, so that their order is known."""
        found = []
        for key, data in records:
            answer = self.client.put_record(StreamName=self.name, PartitionKey=key, Data=data)
            found.append(Put(key, data, answer["ShardId"], answer["SequenceNumber"]))
        return found

    def shards(self) -> dict[str, dict[str, Any]]:
        return {each["ShardId"]: each for each in self.client.list_shards(StreamName=self.name)["Shards"]}

    def open_shards(self) -> list[str]:
        """Return the ids of the open shards, in order of their hashes."""
        found = [each for each in self.shards().values() if "EndingSequenceNumber" not in each["SequenceNumberRange"]]
        return [
            each["ShardId"] for each in sorted(found, key=lambda each: int(each["HashKeyRange"]["StartingHashKey"]))
        ]

    def split(self, shard_id: str) -> None:
        """Split a shard in the middle, and wait until its children are open."""
        hashes = self.shards()[shard_id]["HashKeyRange"]
        middle = (int(hashes["StartingHashKey"]) + int(hashes["EndingHashKey"])) // 2 + 1
        self.client.split_shard(StreamName=self.name, ShardToSplit=shard_id, NewStartingHashKey=str(middle))
        self.wait()

    def merge(self, shard_id: str, adjacent: str) -> None:
        """Merge two shards, and wait until their child is open."""
        self.client.merge_shards(StreamName=self.name, ShardToMerge=shard_id, AdjacentShardToMerge=adjacent)
        self.wait()

    def _summary(self) -> Any:
        return self.client.describe_stream_summary(StreamName=self.name)["StreamDescriptionSummary"]


def archive_of(stack: Stack, kinesis: KinesisStream, slots: int = 3, **settings: Any) -> Archive:
    """Return an archive of a stream in slots. `settings`: further ones of Waybill's stream."""
    from ingest_scenes import Archive

    section = {"connection": "kinesis_test", "slots": slots}
    stream = {"source": "kinesis", "kinesis": section, "parser": {"name": "raw"}, **settings}
    return Archive(stack, kinesis.name, [kinesis.name], stream)
