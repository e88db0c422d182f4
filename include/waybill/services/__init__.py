"""The servers that Waybill talks to, each behind a client that raises Waybill's errors.

- `clients`: HTTP and S3 clients, ZooKeeper sessions and the schema registry, as they are opened.
- `store`: objects in S3, created if absent.
- `coordination`: locks and nodes in ZooKeeper.
- `kafka`: reading topic-partitions, administrating topics, consumer groups, producing.
- `kinesis`: reading shards, and their records as Kafka's.
"""
