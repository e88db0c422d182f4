"""Kinesis as a source: streams and their shards, the records of a shard, and their conversion to Kafka record batches.

- `client`: lists streams and shards.
- `shard_reader`: the records of one shard, from a position on.
- `messages`: records as record batches. KPL's aggregates are unpacked (`aggregates`).
- `calls`: one call to Kinesis, with its retries and errors; `answers`: fast parsing of GetRecords' answers.
"""

from waybill.services.kinesis.client import KinesisSource, StreamDescription
from waybill.services.kinesis.shard_reader import ShardLimits, ShardRead, ShardReader

__all__ = ["KinesisSource", "ShardLimits", "ShardRead", "ShardReader", "StreamDescription"]
