"""Kafka's record batches as bytes and as Arrow, and the lineage and positions of Kinesis shards.

- `batches`: frame, check, decode, encode and compress record batches of format v2.
- `shards`: the slot map, and checkpoints.
"""
