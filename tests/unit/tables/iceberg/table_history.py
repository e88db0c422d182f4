"""Table metadata with snapshots that have given properties, for tests without a catalog."""

from __future__ import annotations

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary


def history(*properties: dict[str, str], current: int | None = None) -> TableMetadata:
    """Return a table with one snapshot for each set of properties, each on top of the one before."""
    snapshots = [
        Snapshot(
            snapshot_id=n,
            parent_snapshot_id=n - 1 if n > 1 else None,
            sequence_number=n,
            timestamp_ms=n,
            manifest_list="s3://none",
            summary=Summary(operation=Operation.APPEND, **own),
            schema_id=0,
        )
        for n, own in enumerate(properties, 1)
    ]
    return table_of(snapshots, current or len(snapshots))


def table_of(snapshots: list[Snapshot], head: int) -> TableMetadata:
    """Return a table with these snapshots, of which `head` is the current one."""
    refs = {"main": SnapshotRef(snapshot_id=head, snapshot_ref_type=SnapshotRefType.BRANCH)} if snapshots else {}
    return TableMetadataV2(
        location="s3://none",
        last_sequence_number=len(snapshots),
        last_updated_ms=0,
        last_column_id=0,
        schemas=[Schema()],
        current_schema_id=0,
        partition_specs=[UNPARTITIONED_PARTITION_SPEC],
        default_spec_id=0,
        last_partition_id=999,
        properties={},
        snapshots=snapshots,
        current_snapshot_id=head if snapshots else None,
        refs=refs,
    )
