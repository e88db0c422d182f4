"""The replay index: which parts of the backup objects hold the messages of a key.

- `file_format`: an index file, which covers consecutive backup objects of one chain.
- `build`: extends the index of a chain by newly committed objects.
- `lookup`: the parts that may hold messages of some keys between two times.

docs/decisions/0029-replay-index.md has the reasons and the figures.
"""
