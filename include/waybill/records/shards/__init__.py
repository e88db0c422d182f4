"""Kinesis shards, without a connection: their lineage, their archived positions, and the slots that archive them."""
