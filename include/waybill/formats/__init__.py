"""Formats of the backup beside Kafka's own: SequenceFile and text, each with an index object (docs/decisions/0006).

- `sequencefile`, `text`: the bytes. A writer takes decoded messages in Arrow, a reader gives them back.
- `index`: the small object beside a backup object, which says what the bytes cannot.
- `reading`: a backup object and its index, read as one.

Nothing here is imported with this package: numba and pyarrow take a second, and a stream of the format `kafka` needs
neither to be ingested.
"""
