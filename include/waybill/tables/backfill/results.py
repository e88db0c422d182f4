"""The tasks of a backfill: each parses a part of the range, and records the data files that it wrote.

The result of a task is an object that is created if absent. So a retry executes only the tasks without a result. If two
rivals execute the same task, one of them deletes its files: the rows of a task exist once.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

from pyiceberg.manifest import DataFile

from waybill.archive.chain.spans import ArchiveFault
from waybill.base import failpoints
from waybill.base.documents import read_document
from waybill.base.errors import BackfillRefused, DocumentDamaged, PlanUnusable
from waybill.config.names import TopicPartition, backfill_task_key
from waybill.services.store import Store
from waybill.tables.audit.counts import AuditCounts
from waybill.tables.backfill.request import BackfillRequest
from waybill.tables.iceberg import StreamTables, remove_files, task_io
from waybill.tables.iceberg.progress import parse_watermarks, watermarks_text
from waybill.tables.partition.lateness import Lateness
from waybill.tables.partition.partition_plan import Task
from waybill.tables.partition.statistics import QUARANTINED_PROPERTY, ROWS_PROPERTY, ReasonCounts, RunStatistics
from waybill.tables.partition.tasks import Job, TaskResult, run_task
from waybill.tables.staging.table_layout import FileEntry, file_entries, load_data_files

_VERSION = 1
_THREADS = 8


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """The recorded result of one task."""

    number: int
    run_id: str
    table: Sequence[FileEntry]
    quarantine: Sequence[FileEntry]
    messages: int
    quarantined: int
    seconds: float
    """Wall-clock time of the task."""
    statistics: RunStatistics

    def to_json(self) -> bytes:
        """Return the content of the result's object, with `"v": 1`."""
        counts = self.statistics.counts
        document: dict[str, Any] = {
            "v": _VERSION,
            "task": self.number,
            "run": self.run_id,
            "table": list(self.table),
            "quarantine": list(self.quarantine),
            "messages": self.messages,
            "quarantined": self.quarantined,
            "seconds": round(self.seconds, 3),
            "lateness": self.statistics.lateness.to_text(),
            "watermarks": watermarks_text(self.statistics.watermarks),
            "reasons": self.statistics.reasons.to_text(),
            "counts": counts.to_text(),
            "ranges": {str(tp): list(ranges) for tp, ranges in counts.ranges.items()},
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, key: str, content: bytes) -> Self:
        """Parse what `to_json` returned.

        Raises `DocumentTooNew` for a result of a newer version of Waybill, `DocumentDamaged` for one that cannot be
        parsed.
        """
        try:
            document = read_document(content, _VERSION, key)
            return cls(
                document["task"],
                document["run"],
                document["table"],
                document["quarantine"],
                document["messages"],
                document["quarantined"],
                document["seconds"],
                _statistics(document, key),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DocumentDamaged(f"{key} cannot be read ({error}): remove the object, and run again") from error


def _statistics(document: Mapping[str, Any], key: str) -> RunStatistics:
    ranges = {TopicPartition.parse(tp): tuple(map(tuple, found)) for tp, found in document["ranges"].items()}
    counts = AuditCounts.from_text(document["counts"]) or AuditCounts()
    return RunStatistics(
        Lateness.from_text(document["lateness"], key),
        parse_watermarks(document["watermarks"], key),
        ReasonCounts.from_text(document["reasons"]),
        dataclasses.replace(counts, ranges=ranges),
    )


# --- executing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task of a backfill, to execute on an executor or in this process."""

    job: Job
    stream: str
    backfill: str
    number: int
    spans: Task


def run_and_record(task: PlannedTask) -> ArchiveFault | None:
    """Execute a task and record its files, or delete them if a rival has recorded its own. Return the archive's fault.

    Raises what `waybill.tables.partition.tasks.run_task` raises.
    """
    job = task.job
    result = run_task(job, task.spans)
    if isinstance(result, ArchiveFault):
        return result
    failpoints.reach("backfill.task_written")
    record = _record(task, result)
    with Store.of(job.storage) as store:
        key = backfill_task_key(store.prefix, task.stream, task.backfill, task.number)
        existing = store.create_or_read_existing(key, record.to_json())
        # This run may have created the object: if the response is lost, the request is sent again, and refused.
        if existing is not None and TaskRecord.from_json(key, existing).run_id != record.run_id:
            files = [file.file_path for file in (*result.table_files, *result.quarantine_files)]
            remove_files(task_io(job.storage, job.catalog_connection, job.table.data_location), files)
    failpoints.reach("backfill.task_recorded")
    return None


def _record(task: PlannedTask, result: TaskResult) -> TaskRecord:
    stages = result.seconds
    return TaskRecord(
        task.number,
        uuid.uuid4().hex,
        file_entries(result.table_files),
        file_entries(result.quarantine_files),
        result.messages,
        result.quarantined,
        stages.read_and_decode + stages.parse + stages.write,
        result.statistics,
    )


# --- reading ----------------------------------------------------------------------------------------------------------


def find_records(store: Store, request: BackfillRequest) -> dict[int, TaskRecord]:
    """Return the recorded results of a backfill's tasks, by number."""

    def read(number: int) -> TaskRecord | None:
        key = backfill_task_key(store.prefix, request.stream, request.id, number)
        found = store.read_if_exists(key)
        return None if found is None else TaskRecord.from_json(key, found)

    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(read, range(len(request.plan.tasks))))
    return {number: record for number, record in enumerate(found) if record is not None}


@dataclass(frozen=True, slots=True)
class BuiltFiles:
    """The data files of all tasks of a backfill."""

    run_id: str
    table: Sequence[DataFile]
    quarantine: Sequence[DataFile]
    messages: int
    quarantined: int
    properties: Mapping[str, str]
    """The statistics of the tasks, as the properties of a run's snapshot."""


def load_built_files(
    store: Store, request: BackfillRequest, tables: StreamTables, *, with_quarantine: bool = True
) -> BuiltFiles:
    """Return the files of a backfill whose tasks are done.

    `with_quarantine`: False for a promotion that has changed the quarantine already. Its files may have been compacted
    and expired since then.

    Raises `BackfillRefused` if a task is not done, `PlanUnusable` when a file no longer exists.
    """
    records = find_records(store, request)
    missing = len(request.plan.tasks) - len(records)
    if missing:
        raise BackfillRefused(
            f"backfill {request.id} of {request.stream}: {missing} of {len(request.plan.tasks)} tasks are not done: "
            f"`waybill backfill run {request.stream} --id {request.id}` continues"
        )
    done = [records[number] for number in sorted(records)]
    try:
        table = load_data_files(tables.main, [entry for record in done for entry in record.table])
        entries = [entry for record in done for entry in record.quarantine] if with_quarantine else []
        quarantine = load_data_files(tables.quarantine, entries)
    except FileNotFoundError as error:
        raise PlanUnusable(
            f"a file of backfill {request.id} of {request.stream} no longer exists ({error}): its branch has expired. "
            f"Cancel the backfill, and request it again"
        ) from error
    messages, quarantined = (sum(each) for each in zip(*((r.messages, r.quarantined) for r in done), strict=True))
    counts = {ROWS_PROPERTY: str(messages - quarantined), QUARANTINED_PROPERTY: str(quarantined)}
    statistics = RunStatistics.sum(record.statistics for record in done).snapshot_properties()
    return BuiltFiles(request.plan_id, table, quarantine, messages, quarantined, {**statistics, **counts})
