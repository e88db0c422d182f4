"""Where the next plan of a stream starts, and under which key it is stored.

The key follows from the progress of the published table, so every run that starts there finds the same plan. Several
plans can start at the same progress, if earlier ones did not advance it because of archive faults, or if a person
rejected them. The attempt number distinguishes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from waybill.config.models import Stream
from waybill.config.names import plan_key
from waybill.services.store import Store
from waybill.tables.audit import DecisionKind, find_decision
from waybill.tables.iceberg import (
    BlockedPartitions,
    Progress,
    StreamTables,
    metadata_at,
    read_blocked_partitions,
    read_progress,
    target_of,
)
from waybill.tables.partition.partition_plan import plan_id


@dataclass(frozen=True, slots=True)
class NextPlan:
    """The plan that the next run executes, whether it is stored already or not."""

    key: str
    start: Progress
    blocked: BlockedPartitions
    """The topic-partitions that the last commit left out."""
    attempt: int
    """How many earlier plans started from `start`."""
    rejected: tuple[str, ...]
    """The ids of the plans that a person has rejected since the last commit."""

    @classmethod
    def of(cls, store: Store, name: str, stream: Stream, tables: StreamTables) -> Self:
        """Find the next plan of stream `name`, whose tables are loaded.

        Raises `ProgressLost`, `DocumentTooNew`, `DocumentDamaged` or `StoreUnavailable`.
        """
        main = tables.main
        published = metadata_at(main.metadata, target_of(main.metadata, stream.generation))
        start = read_progress(published, ".".join(main.name()))
        blocked = read_blocked_partitions(published)
        uuid = str(main.metadata.table_uuid)
        attempt, rejected = blocked.attempt, list[str]()
        while True:
            key = plan_key(store.prefix, name, stream.generation, uuid, start, attempt)
            decision = find_decision(store, key)
            if decision is None or decision.kind is not DecisionKind.REJECTED:
                return cls(key, start, blocked, attempt, tuple(rejected))
            rejected.append(plan_id(key))
            attempt += 1
