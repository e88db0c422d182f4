"""Random scenarios with faults in a real stack while lanes run, and a checker that shares no code with Waybill.

`python -m chaos` runs the requested seeds; docs/testing-with-faults.md explains how to read and replay them.
"""
