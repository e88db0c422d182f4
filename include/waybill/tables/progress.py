"""Progress: up to which offset each chain has been turned into rows.

It is a property of the snapshot that added the rows, so that both are there or neither is. Snapshots of others
(a compaction, a deletion) do not carry it on: the newest one in the current snapshot's ancestry that has it counts. A
table that is rolled back goes back to the progress of that time, and the rows in between come again from the archive.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from waybill.errors import ProgressLost
from waybill.names import TopicPartition

__all__ = ["PLAN_PROPERTY", "PROGRESS_PROPERTY", "Progress", "read_progress"]

PROGRESS_PROPERTY = "waybill.progress"
PLAN_PROPERTY = "waybill.plan"
_VERSION = 1

Progress = Mapping[TopicPartition, int]
"""The next offset of each topic-partition; one that is not in it has not been started."""


@dataclass(frozen=True, slots=True)
class _Ancestry:
    metadata: TableMetadata

    def __iter__(self) -> Iterator[Snapshot]:
        snapshot = self.metadata.current_snapshot()
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self.metadata.snapshot_by_id(parent)


def read_progress(metadata: TableMetadata, name: str) -> Progress:
    """The progress that a table's history records; empty for a table without rows.

    Raises `ProgressLost` when the table holds rows and no snapshot says up to which offsets, or one says it in a
    version of the document that is newer than this code.
    """
    for snapshot in _Ancestry(metadata):
        text = snapshot.summary.additional_properties.get(PROGRESS_PROPERTY) if snapshot.summary else None
        if text is not None:
            return _parse(text, name)
    current = metadata.current_snapshot()
    if current is None or (current.summary and current.summary.additional_properties.get("total-records") == "0"):
        return {}
    raise ProgressLost(
        f"table {name} holds rows, but no snapshot in its history has the property {PROGRESS_PROPERTY}: it was written "
        f"by somebody else, or the snapshots that had it were expired. Roll back to a snapshot that has it, or raise "
        f"the stream's generation"
    )


def progress_text(progress: Progress) -> str:
    """The document that `read_progress` reads."""
    offsets = {str(tp): offset for tp, offset in sorted(progress.items())}
    return json.dumps({"v": _VERSION, "offsets": offsets}, separators=(",", ":"))


def _parse(text: str, name: str) -> Progress:
    document = json.loads(text)
    if document.get("v") != _VERSION:
        raise ProgressLost(
            f"table {name} has progress in version {document.get('v')!r}; this Waybill reads version {_VERSION}: "
            f"a newer one wrote it, use that"
        )
    return {TopicPartition.parse(tp): int(offset) for tp, offset in document["offsets"].items()}
