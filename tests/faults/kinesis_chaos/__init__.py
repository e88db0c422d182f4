"""Scenarios that hurt lanes while they archive a Kinesis stream that is split and merged, drawn from seeds.

`make chaos-kinesis` runs as many seeds as asked; docs/testing-with-faults.md says how to read and replay them.
"""
