"""Partition: turn backup objects into table rows, exactly once.

`run` is the driver, `plan` the input of a run, `execute` runs the tasks of a plan and `tasks` one of them, on an
executor. `rows` makes rows of messages. `staged` records the files, `report`, `statistics`, `lateness` and `alert` the
figures. `files_sink` writes the rows of streams with `sink: files`.
"""
