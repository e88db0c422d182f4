"""Read the state that Waybill keeps in the properties of a table's snapshots.

State is kept in snapshot properties so that it is committed atomically with the rows that it describes. Not every
snapshot repeats the state: the snapshots of other programs (a compaction, a deletion) have none, and a commit of
Waybill writes only the properties that it changes. Each property is therefore read from the newest snapshot that has
it, among the current snapshot and its ancestors. A table that is rolled back returns to the state of that time.

Before snapshots expire, `waybill.tables.iceberg.commit.copy_state_to_new_snapshot` must copy `state_of` into a new
snapshot. Otherwise the state expires with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from waybill.base.errors import ProgressLost

PROGRESS_PROPERTY = "waybill.progress"
"""The offset of each topic-partition up to which its chain has been turned into rows:
`waybill.tables.iceberg.progress`."""
RETRIES_PROPERTY = "waybill.retries"
"""The number of changes to both tables that the table has committed: quarantine retries, and promotions and undos of
backfills. `read_retries`."""
WATERMARKS_PROPERTY = "waybill.watermarks"
"""The newest Kafka timestamp of each topic-partition's rows: `waybill.tables.iceberg.progress`."""

SWEPT_PROPERTY = "waybill.swept"
"""In the tables that dedup sweeps fill: the last snapshot of the main table that was swept.
`waybill.tables.iceberg.dedup`."""

LIVE_GENERATION_PROPERTY = "waybill.generation"
"""A property of the table, not of a snapshot: the generation whose rows `main` shows."""


PLAN_PROPERTY = "waybill.plan"
RUN_PROPERTY = "waybill.run"
BLOCKED_PARTITIONS_PROPERTY = "waybill.left_out"
SWEEP_WATERMARKS_PROPERTY = "waybill.sweep.watermarks"
SWEEP_HORIZON_PROPERTY = "waybill.sweep.horizon"
SWEEP_BEGINNING_PROPERTY = "waybill.sweep.beginning"
SWEEP_REBUILD_PROPERTY = "waybill.sweep.rebuild"
"""The rebuild to whose history a snapshot of the unique or the duplicates table belongs:
`waybill.tables.iceberg.histories`."""

BACKFILL_PROPERTY = "waybill.backfill"
"""In the main table: the id of the backfill that this snapshot promoted or undid. It replaces rows of a range."""

STATE_PROPERTIES = (
    PROGRESS_PROPERTY,
    RETRIES_PROPERTY,
    WATERMARKS_PROPERTY,
    SWEPT_PROPERTY,
    SWEEP_REBUILD_PROPERTY,
)

_COMPANIONS = {
    PROGRESS_PROPERTY: (PLAN_PROPERTY, BLOCKED_PARTITIONS_PROPERTY),
    SWEPT_PROPERTY: (
        SWEEP_WATERMARKS_PROPERTY,
        SWEEP_HORIZON_PROPERTY,
        SWEEP_BEGINNING_PROPERTY,
        PLAN_PROPERTY,
        RUN_PROPERTY,
    ),
}
"""Properties that are valid only together with the state property of the same snapshot."""


def newest_properties_with(metadata: TableMetadata, name: str) -> Mapping[str, str] | None:
    """Return all properties of the newest snapshot that has the property `name`, or None if no snapshot has it.

    Looks at the current snapshot and its ancestors.
    """
    for snapshot in ancestry(metadata):
        properties = snapshot.summary.additional_properties if snapshot.summary else {}
        if name in properties:
            return properties
    return None


def newest_property(metadata: TableMetadata, name: str) -> str | None:
    """Return the newest value of the property in the table's history, or None if no snapshot has it."""
    properties = newest_properties_with(metadata, name)
    return None if properties is None else properties[name]


def state_of(metadata: TableMetadata) -> dict[str, str]:
    """Return the properties that a new snapshot must have so that older snapshots can expire without loss of state."""
    state = {}
    for name in STATE_PROPERTIES:
        properties = newest_properties_with(metadata, name)
        if properties is not None:
            state[name] = properties[name]
            state |= {other: properties[other] for other in _COMPANIONS.get(name, ()) if other in properties}
    return state


def read_retries(metadata: TableMetadata, table: str) -> int:
    """Return the number of quarantine retries that a table has committed, which is the number of its next retry.

    Raises `ProgressLost` when the property is not a number.
    """
    text = newest_property(metadata, RETRIES_PROPERTY)
    if text is None:
        return 0
    if not text.isdecimal():
        raise ProgressLost(
            f"table {table}: {RETRIES_PROPERTY} is {text!r}, not a number: another program or a newer Waybill wrote it"
        )
    return int(text)


def metadata_as_of(metadata: TableMetadata, snapshot: Snapshot) -> TableMetadata:
    """Return the metadata with `snapshot` as the current one, to read the state that the table had at that time."""
    return metadata.model_copy(update={"current_snapshot_id": snapshot.snapshot_id})


def metadata_at(metadata: TableMetadata, branch: str) -> TableMetadata:
    """Return the metadata with the head of `branch` as the current snapshot, to read the state of the branch.

    A branch that does not exist has the state of an empty table.
    """
    ref = metadata.refs.get(branch)
    return metadata.model_copy(update={"current_snapshot_id": None if ref is None else ref.snapshot_id})


def ancestry(metadata: TableMetadata) -> Iterator[Snapshot]:
    """Yield the current snapshot and its ancestors, newest first, up to the first one that has expired."""
    snapshot = metadata.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)


def live_files(table: Table, snapshot: Snapshot | None) -> Iterator[DataFile]:
    """Yield all data files of a snapshot, whichever snapshot added them; none without a snapshot.

    Delete files are ignored. So this is not `table.scan`, which reads them too, and raises for equality deletes.
    """
    for manifest in () if snapshot is None else snapshot.manifests(table.io):
        if manifest.content is ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io):
                yield entry.data_file
