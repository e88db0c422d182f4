"""Ingest: topic-partitions of Kafka into chains of backup objects, each offset exactly once (docs/protocol.md).

`plan_lanes` says which lanes there are to run, `run_lane` runs one, `merge_reports` makes one report of theirs. Each is
a plain function that a task, a test and a notebook can call; what goes in and out of them travels as JSON.
"""

from waybill.ingest.lane import drain_lane, run_lane
from waybill.ingest.plan import Lane, LaneShare, plan_lanes
from waybill.ingest.protocol import PartitionRun
from waybill.ingest.report import (
    ArchivedObject,
    Failure,
    IngestReport,
    LaneReport,
    Outcome,
    PartitionReport,
    merge_reports,
)
from waybill.ingest.services import Services, connect
from waybill.ingest.turn import Clock, Turn

__all__ = [
    "ArchivedObject",
    "Clock",
    "Failure",
    "IngestReport",
    "Lane",
    "LaneReport",
    "LaneShare",
    "Outcome",
    "PartitionReport",
    "PartitionRun",
    "Services",
    "Turn",
    "connect",
    "drain_lane",
    "merge_reports",
    "plan_lanes",
    "run_lane",
]
