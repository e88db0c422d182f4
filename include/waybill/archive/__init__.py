"""The verbatim archive: chains of backup objects are written, read and restored into Kafka.

- `chain`: backup objects, their order, gaps and index objects.
- `formats`: SequenceFiles and text, the other formats of backup objects.
- `ingest`: lanes, and the commit protocol (docs/protocol.md). Read `ingest/protocol.py` first.
- `restore`: the archive is produced into a Kafka topic.
"""
