"""The archive: the backup objects of every chain, and everything that reads or writes them.

This package owns the bytes below a stream's `backup/`, `index/`, `starts/` and `gaps/` prefixes. Ingest, the partition
job, the Spark data source, `waybill verify` and the command line are its clients: they read and write these objects
only through this package. The names of the objects are in `waybill.config.names`, the calls to S3 in
`waybill.services.store`.

Chains:

- `chain`: list the objects of a chain with their ranges, find its last object, derive the committed offset from it.
- `chain_start`: the stored record of the offset at which a chain begins.
- `gaps`: the stored records of accepted gaps, and the gap markers that stand for them in a chain.

Writing:

- `backup_object`: a backup object while it is written, and `new_backup_object` for each format of the config.
- `indexed_object`: the objects of the formats SequenceFile and text, which need an index object.
- `object_index`: the index object, written and parsed.

Reading:

- `object_reader`: check and summarise an object, or read its messages or offsets, whatever its format.
- `object_scan`: read an object for verification, and compare its content with its name.
- `indexed_reader`: an object of SequenceFile or text together with its index object.
- `spans`: read ranges of objects as Arrow batches, and locate the offset from which an object is unreadable.
- `read_ahead`: fetch the next objects of a task while the current one is decoded.

What this package relies on: S3 creates an object of a given key only once (`If-None-Match: *`) and lists keys in order.
Correctness does not depend on ZooKeeper, on locks or on clocks.

The modules `chain`, `chain_start`, `gaps`, `backup_object` and `object_reader` import neither numba nor pyarrow: an
ingest lane starts every minute, and a stream of the format `kafka` needs neither of them.
"""
