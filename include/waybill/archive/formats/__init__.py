"""File formats of messages other than Kafka's own: Hadoop's SequenceFile, and text with a delimiter.

This package encodes and decodes bytes. It does not use S3 or chains: `waybill.archive.chain` writes backup objects in
these formats together with an index object (docs/decisions/0006-other-backup-formats.md), and the `files` sink of
`waybill.tables.partition` writes its files with the same writers.

- `sequencefile`, `text`: a writer takes decoded messages as Arrow batches, a reader returns them.
- `columns`: the conversion between Arrow columns and the arrays that the compiled loops use.
- `streams`: sources of bytes that arrive in pieces.

This file imports nothing: numba and pyarrow take a second, and ingest of a stream of the format `kafka` needs neither.
"""
