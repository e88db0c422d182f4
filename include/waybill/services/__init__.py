"""The servers that Waybill talks to, each behind a client that raises Waybill's errors.

- `clients`: creates HTTP and S3 clients, ZooKeeper sessions and clients of the schema registry.
- `store`: objects in S3, created if absent.
- `coordination`: locks and nodes in ZooKeeper.
- `kafka`: reading topic-partitions, administrating topics, consumer groups, producing.
- `kinesis`: reading shards, and converting their records to Kafka's.
"""
