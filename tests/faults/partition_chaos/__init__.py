"""Partition runs that are killed, frozen and disconnected, alone and concurrently, on the real stack.

As `chaos` does it with the lanes of ingest: docs/testing-with-faults.md. Lanes archive a topic in peace; then drivers,
in processes of their own and with their tasks inside, turn the archive into tables while things go wrong.
"""
