"""What a run has staged: the data files of a plan, said once and for all before anything of it is committed.

Two tables cannot be committed together, and what a message becomes may depend on the version of the code that reads
it. So the first run that has carried out a plan writes down its files, in an object that is created if absent. Whoever
comes after it, a rival or a retry after a crash between the two commits, commits these files and none of its own: a
message is in the table or in quarantine, whatever has changed in between, and the work is not done twice.

It also writes down how far it got: where the archive could not give what the plan says, a topic-partition ends before.
So whoever repairs the archive while two runs carry out one plan, only one of the two outcomes can ever be committed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile

from waybill.archive.spans import ArchiveFault
from waybill.errors import PlanUnusable
from waybill.names import TopicPartition, staged_key
from waybill.partition.alert import ROWS_PROPERTY
from waybill.partition.files_sink.writer import FILE_BYTES_PROPERTY, FILES_PROPERTY
from waybill.partition.plan import Plan, faults_document, offsets_document, parse_faults, parse_offsets
from waybill.staging.driver import record_staged_document, staged_files
from waybill.staging.table_layout import entries_of
from waybill.store import Store
from waybill.tables import StreamTables, remove_files

__all__ = ["Staged", "discard", "find_staged", "record_staged"]

_VERSION = 3


@dataclass(frozen=True, slots=True)
class Staged:
    """The files of a plan, for either table."""

    run_id: str
    table_files: Sequence[DataFile]
    quarantine_files: Sequence[DataFile]
    end: Mapping[TopicPartition, int]
    """The progress that the files make."""
    faults: Mapping[TopicPartition, ArchiveFault]
    """Why some topic-partitions end before the plan does."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Of the table's snapshot: what the run has learnt, which a retry, that reads no message, would not know."""

    @property
    def rows(self) -> int:
        """Rows that were made of messages. Where they go to files, those of the table say which files."""
        given = self.properties.get(ROWS_PROPERTY)
        return sum(file.record_count for file in self.table_files) if given is None else int(given)

    @property
    def files(self) -> int:
        """Files that hold them."""
        return int(self.properties.get(FILES_PROPERTY, len(self.table_files)))

    @property
    def file_bytes(self) -> int:
        """Of those files."""
        given = self.properties.get(FILE_BYTES_PROPERTY)
        return sum(file.file_size_in_bytes for file in self.table_files) if given is None else int(given)

    @property
    def quarantined(self) -> int:
        return sum(file.record_count for file in self.quarantine_files)


def find_staged(store: Store, plan: Plan, tables: StreamTables) -> Staged | None:
    """What was staged for a plan, if a run got that far.

    Raises `PlanUnusable` when a file that was staged is gone (it was taken for an orphan, or the table was rolled back
    and the file removed since), or when what was staged is not of this plan.
    """
    key = staged_key(plan.key)
    found = store.read_if_there(key)
    if found is None:
        return None
    document = json.loads(found)
    if document.get("v") != _VERSION:
        raise PlanUnusable(
            f"{key} is of version {document.get('v')!r}; this Waybill reads version {_VERSION}: let the Waybill that "
            f"wrote it commit it, or remove the object, and run again"
        )
    if document["plan"] != _digest(plan):
        raise PlanUnusable(
            f"{key} belongs to another plan than {plan.key} is now: one of the two was replaced by hand. Remove "
            f"{key}, and run again"
        )
    return Staged(
        document["run"],
        staged_files(tables.main, document["table"], key),
        staged_files(tables.quarantine, document["quarantine"], key),
        parse_offsets(document["end"]),
        parse_faults(document["faults"]),
        document["properties"],
    )


def record_staged(store: Store, plan: Plan, staged: Staged) -> bool:
    """Say which files a plan has. False: another run has said so before, and its files count."""
    document: dict[str, Any] = {
        "v": _VERSION,
        "plan": _digest(plan),
        "run": staged.run_id,
        "table": entries_of(staged.table_files),
        "quarantine": entries_of(staged.quarantine_files),
        "end": offsets_document(staged.end),
        "faults": faults_document(staged.faults),
        "properties": dict(staged.properties),
    }
    return record_staged_document(store, staged_key(plan.key), document)


def discard(io: FileIO, staged: Staged) -> None:
    """Remove the files of a run that lost. Nothing has ever referenced them."""
    remove_files(io, [file.file_path for file in (*staged.table_files, *staged.quarantine_files)])


def _digest(plan: Plan) -> str:
    return hashlib.sha256(plan.to_json()).hexdigest()
