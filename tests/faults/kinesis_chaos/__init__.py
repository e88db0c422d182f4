"""Random scenarios with faults for lanes that archive a Kinesis stream, while its shards are split and merged.

`make chaos-kinesis` runs the requested seeds; docs/testing-with-faults.md explains how to read and replay them.
"""
