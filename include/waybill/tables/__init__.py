"""From the archive to Iceberg tables: partition, audit, quarantine, dedup, maintenance and backfill, by Spark.

- `iceberg`: tables, their commits, and the state that snapshots carry.
- `staging`: the order of the steps plan, execute, record and commit (`staging/driver.py`), and the writing of files.
- `audit`: checks of the rows that a run adds, before readers see them.
- `partition`: messages to rows, every hour.
- `quarantine`: messages that could not be parsed, and their retry.
- `dedup`: each message id once; `dedup/index` is the key index.
- `backfill`: builds a range of a table again from the archive, beside the live rows.
- `maintenance`: compaction, expiry, orphaned files.
- `spark`: how these run on executors; the one package that imports Spark.
"""
