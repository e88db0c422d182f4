"""The staged files of a partition run, recorded before anything of the run is committed.

Two tables cannot be committed together, and the result for a message may depend on the version of the code that parses
it. So the first run that has executed a plan records its files in an object that is created if absent. A rival, or a
retry after a crash between the two commits, commits these files instead of its own: a message is in the table or in the
quarantine, never in both, and the work is not done twice.

The record also contains the offsets at which the files end: a topic-partition ends before the plan does where the
archive has a fault. So if the archive is repaired while two runs execute one plan, only one result is committed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile

from waybill.archive.chain.spans import ArchiveFault
from waybill.base.documents import Document
from waybill.base.errors import PlanUnusable
from waybill.config.names import TopicPartition, offsets_of_json, offsets_to_json, staged_key
from waybill.services.store import Store
from waybill.tables.iceberg import StreamTables, remove_files
from waybill.tables.partition.files_sink.writer import FILE_BYTES_PROPERTY, FILES_PROPERTY
from waybill.tables.partition.partition_plan import Plan, faults_document, parse_faults
from waybill.tables.partition.statistics import ROWS_PROPERTY
from waybill.tables.staging.driver import record_staged_document, staged_files
from waybill.tables.staging.table_layout import file_entries

_DOCUMENT = Document(
    "{where} cannot be read ({error}): remove the object, and run again",
    version=3,
    oldest=3,
    remedy="Let the Waybill that wrote it commit it, or remove the object, and run again",
)


@dataclass(frozen=True, slots=True)
class Staged:
    """The staged files of a plan, for both tables."""

    run_id: str
    table_files: Sequence[DataFile]
    quarantine_files: Sequence[DataFile]
    end: Mapping[TopicPartition, int]
    """The progress once the files are committed."""
    faults: Mapping[TopicPartition, ArchiveFault]
    """Why some topic-partitions end before the plan does."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties of the table's snapshot: statistics of the run, which a retry without messages could not compute."""

    @property
    def rows(self) -> int:
        """Number of rows made of messages. With sink `files` the table's own rows are those of the inventory."""
        given = self.properties.get(ROWS_PROPERTY)
        return sum(file.record_count for file in self.table_files) if given is None else int(given)

    @property
    def files(self) -> int:
        """Number of files with these rows."""
        return int(self.properties.get(FILES_PROPERTY, len(self.table_files)))

    @property
    def file_bytes(self) -> int:
        """Size of these files."""
        given = self.properties.get(FILE_BYTES_PROPERTY)
        return sum(file.file_size_in_bytes for file in self.table_files) if given is None else int(given)

    @property
    def quarantined(self) -> int:
        return sum(file.record_count for file in self.quarantine_files)


def find_staged(store: Store, plan: Plan, tables: StreamTables) -> Staged | None:
    """Return the recorded files of a plan, or None if no run has recorded any.

    Raises `PlanUnusable` when a recorded file no longer exists (it was removed as an orphan, or the table was rolled
    back and the file removed since), or when the record belongs to another plan. Raises `DocumentTooNew` when a newer
    Waybill wrote the record, `DocumentDamaged` when it cannot be parsed.
    """
    key = staged_key(plan.key)
    found = store.read_if_exists(key)
    if found is None:
        return None
    try:
        document = _DOCUMENT.read(found, key)
        if document["plan"] != _digest(plan):
            raise PlanUnusable(
                f"{key} belongs to another plan than {plan.key} is now: one of the two was replaced by hand. Remove "
                f"{key}, and run again"
            )
        return Staged(
            document["run"],
            staged_files(tables.main, document["table"], key),
            staged_files(tables.quarantine, document["quarantine"], key),
            offsets_of_json(document["end"]),
            parse_faults(document["faults"]),
            document["properties"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _DOCUMENT.damage(key, error) from error


def record_staged(store: Store, plan: Plan, staged: Staged) -> bool:
    """Record the files of a plan. Return False if another run has recorded its files before."""
    fields = {
        "plan": _digest(plan),
        "run": staged.run_id,
        "table": file_entries(staged.table_files),
        "quarantine": file_entries(staged.quarantine_files),
        "end": offsets_to_json(staged.end),
        "faults": faults_document(staged.faults),
        "properties": dict(staged.properties),
    }
    return record_staged_document(store, staged_key(plan.key), _DOCUMENT, fields)


def discard(io: FileIO, staged: Staged) -> None:
    """Delete the files of a run whose files were not recorded, so that no table ever references them."""
    remove_files(io, [file.file_path for file in (*staged.table_files, *staged.quarantine_files)])


def _digest(plan: Plan) -> str:
    return hashlib.sha256(plan.to_json()).hexdigest()
