"""Dedup sweeps: every key of a stream once over a window of arrival time.

`hashing` makes keys of rows, `candidates` holds what is known of the rows that have one, `order` says which of them
repeat another, `index` answers for the rows of earlier sweeps. docs/protocol.md, "A dedup sweep", says what a duplicate
is and why none is dropped falsely.
"""
