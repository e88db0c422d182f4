"""Ingest: archives topic-partitions as chains of backup objects, each offset exactly once (docs/protocol.md).

`plan_run` plans a run of a group of streams, `run_lane` runs one of its lanes, and `merge_reports` joins their reports.
These are plain functions for tasks, tests and notebooks, and their arguments and results can be stored as JSON.

To read the code, begin with `protocol.py`, whose `_run_protocol` lists the steps of the commit protocol. The parts that
differ between sources are methods of `target.Source`, which `kafka` and `kinesis` implement.
"""

from waybill.archive.ingest.lane import drain_lane, run_lane
from waybill.archive.ingest.lane_plan import IngestPlan, Lane, LaneShare, StreamProblem, plan_lanes, plan_run
from waybill.archive.ingest.lane_report import (
    ArchivedObject,
    Failure,
    IngestReport,
    LaneReport,
    LaneSummary,
    Outcome,
    StreamReport,
    StreamSummary,
    TopicPartitionReport,
    merge_reports,
)
from waybill.archive.ingest.services import connect, connect_all
from waybill.archive.ingest.target import IngestServices
from waybill.archive.ingest.time_slice import Clock, TimeSlice

__all__ = [
    "ArchivedObject",
    "Clock",
    "Failure",
    "IngestPlan",
    "IngestReport",
    "IngestServices",
    "Lane",
    "LaneReport",
    "LaneShare",
    "LaneSummary",
    "Outcome",
    "StreamProblem",
    "StreamReport",
    "StreamSummary",
    "TimeSlice",
    "TopicPartitionReport",
    "connect",
    "connect_all",
    "drain_lane",
    "merge_reports",
    "plan_lanes",
    "plan_run",
    "run_lane",
]
