"""ZooKeeper: locks, committed offsets, the journal of named stops, and people's decisions to pause a stream.

What the protocol relies on: a node's version grows with each write, and ZooKeeper refuses a write that names an older
version. Locks only save work: they keep two lanes from fetching the same data, but without them nothing would be lost
or archived twice. The committed offset is a fast copy of the end of the chain; if it is missing, ingest reads the chain
(docs/protocol.md).

What it survives: a session that expires while a lane sleeps or works. From then on this session writes nothing and
raises `CoordinationUnavailable` instead. A rival's commit is never overwritten, since every write names the version
that was read.
"""

from waybill.config.names import Stage
from waybill.services.coordination.coordinator import Coordinator, IngestState, read_ingest_states
from waybill.services.coordination.day_marks import DayMark, MarkedOffset, StreamMark
from waybill.services.coordination.group_problems import GroupProblem, GroupProblems
from waybill.services.coordination.nodes import CommittedOffset, OffsetCounts, SlotRead, Stop
from waybill.services.coordination.paths import ZkPaths
from waybill.services.coordination.pauses import Pause, PauseAction, StreamPauses, read_pauses
from waybill.services.coordination.session import ZooKeeperSession
from waybill.services.coordination.usage import ALL_STREAMS, KEPT_DAYS, DailyUsage, UsageStore, store_usage

__all__ = [
    "ALL_STREAMS",
    "KEPT_DAYS",
    "CommittedOffset",
    "Coordinator",
    "DailyUsage",
    "DayMark",
    "GroupProblem",
    "GroupProblems",
    "IngestState",
    "MarkedOffset",
    "OffsetCounts",
    "Pause",
    "PauseAction",
    "SlotRead",
    "Stage",
    "Stop",
    "StreamMark",
    "StreamPauses",
    "UsageStore",
    "ZkPaths",
    "ZooKeeperSession",
    "read_ingest_states",
    "read_pauses",
    "store_usage",
]
