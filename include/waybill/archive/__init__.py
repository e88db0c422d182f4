"""The verbatim archive: how a chain of backup objects is written, read and put back into Kafka.

- `chain`: backup objects, their order, gaps and index objects.
- `formats`: SequenceFiles and text, the other formats of backup objects.
- `ingest`: lanes, and the commit protocol (docs/protocol.md). Read `ingest/protocol.py` first.
- `restore`: an archive as a topic again.
"""
