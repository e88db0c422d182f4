"""Kafka's record batches as bytes and as Arrow, and the shards of a Kinesis stream as numbers and ranges.

- `batches`: frame, check, decode, encode and compress record batches of format v2.
- `shards`: the map of shards onto slots, and checkpoints.
"""
