"""The key index: the stored set of message keys that dedup sweeps have kept, with the place of each kept row.

`sorted_runs` writes and reads the immutable files of the index (`run_file` and `filters` define their formats).
`manifest` lists the sorted runs that make up one version of the index. `lookup` finds the keys of a batch in it, and
`merge` replaces many small sorted runs by few.

The index follows from the unique table and can be rebuilt from it (`waybill.tables.dedup.index_build`). This package
does not import from the rest of `waybill.tables.dedup`.
"""
