"""The replay index: in which parts of the backup objects the messages of a key lie.

- `file_format`: an index file, which covers consecutive backup objects of one chain.
- `build`: extending the index of a chain by the objects that were committed since.
- `lookup`: the parts that may hold messages of some keys between two times.

docs/decisions/0029-replay-index.md has the reasons and the figures.
"""
