"""Ingest: archives topic-partitions of Kafka as chains of backup objects, each offset exactly once (docs/protocol.md).

`plan_lanes` returns the lanes of a run, `run_lane` runs one of them, and `merge_reports` joins their reports. These are
plain functions for tasks, tests and notebooks, and their arguments and results can be stored as JSON.

To read the code, begin with `protocol.py`, whose `_run_protocol` lists the steps of the commit protocol.
"""

from waybill.ingest.lane import drain_lane, run_lane
from waybill.ingest.plan import Lane, LaneShare, plan_lanes
from waybill.ingest.report import (
    ArchivedObject,
    Failure,
    IngestReport,
    LaneReport,
    Outcome,
    TopicPartitionReport,
    merge_reports,
)
from waybill.ingest.services import Services, connect
from waybill.ingest.time_slice import Clock, TimeSlice

__all__ = [
    "ArchivedObject",
    "Clock",
    "Failure",
    "IngestReport",
    "Lane",
    "LaneReport",
    "LaneShare",
    "Outcome",
    "Services",
    "TimeSlice",
    "TopicPartitionReport",
    "connect",
    "drain_lane",
    "merge_reports",
    "plan_lanes",
    "run_lane",
]
