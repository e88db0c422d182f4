"""Partition runs that are killed, frozen and disconnected, alone and concurrently, on the real stack.

The counterpart of `chaos` for partition runs: docs/testing-with-faults.md. Lanes archive a topic without faults; then
drivers, in separate processes that also run their tasks, turn the archive into tables while faults are injected.
"""
