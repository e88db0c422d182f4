"""The backup object of a stream's format."""

from __future__ import annotations

from collections.abc import Mapping

from waybill.config import Format
from waybill.config.enums import BackupFormat
from waybill.ingest.backup_object import BackupObject
from waybill.ingest.record_batch_object import RecordBatchObject
from waybill.names import BackupName
from waybill.store import Store

__all__ = ["new_backup_object"]


def new_backup_object(
    store: Store, name: BackupName, topic_id: str, kind: Format, metadata: Mapping[str, str] | None = None
) -> BackupObject:
    """Begin the object that starts at `name.first_offset`; `metadata` goes to its user metadata."""
    if kind.name is BackupFormat.KAFKA:
        return RecordBatchObject(store, name, topic_id, metadata)
    # numba and pyarrow take a second to import, and a lane starts every minute.
    from waybill.ingest.indexed_object import IndexedObject

    return IndexedObject(store, name, topic_id, kind, metadata)
