"""Kinesis as a source of ingest: slots, which take the place of topic-partitions, and the shards that they archive.

- `slot_source`: what ingest asks of a source, answered for Kinesis. Read it first.
- `slot_fetching`: steps 4 and 5 of the commit protocol for a slot; `slot_reader`: what it reads of the shards;
  `slot_object`: the objects that it cuts.
- `slot_maps`: which slot archives which shard, as ZooKeeper and the archive say; `slot_assignment`: how a plan decides
  it; `shard_starts`: the objects in S3 that record it.
- `shard_states`: how far each shard is archived, for people.
- `kcl_import`: going on where a consumer with the Kinesis Client Library stopped.
"""
