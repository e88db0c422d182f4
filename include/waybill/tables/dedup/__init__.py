"""Deduplication: sweeps copy the rows of a stream's table into the unique table, each key once per window.

`sweep` runs one sweep: it plans (`sweep_plan`, `appends`, `first_sweep`), runs tasks (`execute`, `tasks`) and commits
(`commit`). The tasks scan rows for keys (`rows`, `keys`, `candidates`), find duplicates (`match`) and
write rows (`write`). The package `index` stores the keys of earlier sweeps; `index_build` builds the index from the
unique table, `key_index` keeps it up to date. `status` and `sweep_report` show figures.

docs/protocol.md, "A dedup sweep", defines a duplicate and explains why no row is dropped falsely.
"""
