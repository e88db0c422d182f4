"""Partition: from backup objects to table rows, exactly once.

`plan` says what is to be done, `task` does a part of it (on an executor), `run` is the driver.
"""
