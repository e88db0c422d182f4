"""Kinesis shards without a connection: their lineage, how far each is archived, and which slot archives it."""
