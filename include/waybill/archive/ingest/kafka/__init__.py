"""Kafka as a source of ingest: topic-partitions, and the record batches of their logs.

- `topic_source`: the `Source` of ingest for Kafka. Read it first.
- `fetching`: steps 4 and 5 of the commit protocol for a topic-partition of Kafka.
- `log_check`: whether Kafka's log continues where the archive ends.
- `backlog`: an estimate of the bytes that are not archived yet.
"""
