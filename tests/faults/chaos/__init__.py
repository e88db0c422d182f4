"""Scenarios that hurt a real stack while lanes work on it, drawn from seeds, and a checker that shares no code with it.

`python -m chaos` runs as many seeds as asked; docs/testing-with-faults.md says how to read and replay them.
"""
