"""The sink `files`: directories in Hive's layout, for readers that know no Iceberg.

`writer` puts a task's rows into files, `encoders` makes their bytes, `unfit` sets aside what a format cannot hold,
`delivery` creates the objects, `ledger_file` writes down which there are. `finality` decides when an hour is final, and
`finalize` marks it. docs/protocol.md, "Files", says what a reader may rely on.
"""
