"""Kinesis as a source of ingest: slots, which take the place of topic-partitions, and the shards that they archive.

- `slot_source`: the `Source` of ingest for Kinesis. Read it first.
- `slot_fetching`: steps 4 and 5 of the commit protocol for a slot; `slot_reader`: reads its shards; `slot_object`: its
  backup objects.
- `slot_maps`: which slot archives which shard, from ZooKeeper and the archive; `slot_assignment`: how a plan decides
  this; `shard_starts`: the objects in S3 that record it.
- `shard_states`: the archived position of each shard, for people.
- `kcl_import`: continues where a consumer with the Kinesis Client Library stopped.
"""
