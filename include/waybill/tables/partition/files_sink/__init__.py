"""The sink `files`: directories in Hive's layout, for readers that do not know Iceberg.

`writer` puts a task's rows into files, `encoders` encodes them and sends rows that a format cannot hold to quarantine,
`upload` creates the objects. `hour_state` decides when an hour is final, and `finalize` marks it. docs/protocol.md,
"Files", states what a reader may rely on.
"""
