"""The choice of the class that writes a backup object, by the format of the stream."""

from __future__ import annotations

from collections.abc import Mapping

from waybill.archive.chain.backup_object import BackupObject, RecordBatchObject
from waybill.config.models import Format
from waybill.config.models.enums import BackupFormat
from waybill.config.names import BackupName
from waybill.records.batches.limits import LARGEST, Limits
from waybill.services.store import Store


def new_backup_object(
    store: Store,
    name: BackupName,
    topic_id: str,
    kind: Format,
    metadata: Mapping[str, str] | None = None,
    limits: Limits = LARGEST,
) -> BackupObject:
    """Begin the object that starts at `name.first_offset`, in the format `kind`.

    `metadata` is added to the object's user metadata. `limits`: a format other than `kafka` sets aside messages that
    exceed them, without their values.
    """
    if kind.name is BackupFormat.KAFKA:
        return RecordBatchObject(store, name, topic_id, metadata)
    # numba and pyarrow take a second to import, and a lane starts every minute.
    from waybill.archive.chain.indexed_object import IndexedObject

    return IndexedObject(store, name, topic_id, kind, metadata, limits)
