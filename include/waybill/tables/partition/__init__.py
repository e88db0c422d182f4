"""Partition: turn backup objects into table rows, exactly once.

`partition_run` is the driver, `partition_plan` the input of a run, `execute` runs the tasks of a plan and `tasks` one
of them, on an executor. `rows` makes rows of messages. `staged` records the files, `partition_report`, `statistics`,
`lateness` and `alert` the figures. `files_sink` writes the rows of streams with `sink: files`.
"""
