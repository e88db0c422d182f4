"""Read the shards of a slot: the answers of GetRecords, as record batches."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta

from waybill.archive.ingest.time_slice import Clock
from waybill.records.shards.checkpoint import ShardPosition
from waybill.records.shards.lineage import Shard
from waybill.services.kinesis.client import KinesisSource
from waybill.services.kinesis.messages import encode_records
from waybill.services.kinesis.shard_reader import ShardReader


@dataclass(frozen=True, slots=True)
class SlotAnswer:
    """One answer of GetRecords, as record batches."""

    batches: bytes
    """The record batches of its records, concatenated, with offsets from 0 on; b'' if there are no records."""
    position: ShardPosition
    """The position after the answer."""
    size_bytes: int
    """The size of the answer's records."""


class SlotReader:
    """Reads the shards of a slot."""

    def __init__(
        self,
        kinesis: KinesisSource,
        address: str,
        retention: timedelta,
        shards: Mapping[str, Shard],
        clock: Clock,
    ) -> None:
        self._kinesis, self._address, self._shards, self._clock = kinesis, address, shards, clock
        self.retention = retention
        """How long Kinesis keeps a record."""

    def read(self, shard_id: str, position: ShardPosition) -> Generator[SlotAnswer, None, None]:
        """Yield the records of a shard after a position, up to its tip or its end."""
        reader = ShardReader(self._kinesis, self._address, shard_id, now=self._clock.wall)
        with closing(reader.read(position)) as reads:
            for read in reads:
                data = encode_records(read.records, self._shards[shard_id], 0).data if read.records else b""
                yield SlotAnswer(data, read.position, read.size_bytes)
