"""Maintenance: keep a stream's tables in good shape, and remove files and objects that are no longer needed.

- `maintenance_run`: the steps of one maintenance run, in order.
- `table`: the steps for one table: compaction, manifests, snapshot expiry, removal of orphan files.
- `plans`: which plans a partition run or a sweep may still commit, and which staged files they need.
- `orphans`: which files and objects nothing references any more.
- `procedures`: Iceberg's procedures, as maintenance calls them. Spark runs them (`waybill.tables.spark.iceberg`).
- `report`: the figures of a maintenance run.
"""
