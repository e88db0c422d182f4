"""Build a generation that is not live: archive from Kafka if requested, run partition runs, compare it with `main`.

The stream's DAGs execute the same steps with the same code. Their lanes and partition runs can run before, during or
after the build, and the build continues from their results. So a retry needs no record of finished steps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from waybill.base.errors import BackfillRefused
from waybill.config.models import Config
from waybill.config.names import backfill_built_key
from waybill.services.store import Store
from waybill.tables.backfill.diff import WINDOWS_OF_PART, DiffPart, Files, find_diff, make_diff, windows
from waybill.tables.backfill.events import state_of
from waybill.tables.backfill.generation_request import BackfillSource, BuiltGeneration, GenerationRequest
from waybill.tables.backfill.ranges import OffsetRanges
from waybill.tables.backfill.replace import Cutter
from waybill.tables.backfill.request import find_built
from waybill.tables.backfill.states import BackfillState
from waybill.tables.backfill.work import TaskRunner, in_this_process, reach_step
from waybill.tables.iceberg import (
    Progress,
    StreamTables,
    ensure_tables,
    head_of,
    load_tables,
    read_progress,
    target_of,
    translate_storage_errors,
)
from waybill.tables.partition.partition_plan import Task
from waybill.tables.partition.partition_run import run_partition
from waybill.tables.partition.tasks import Job, run_task
from waybill.tables.staging.driver import OnStep
from waybill.tables.staging.services import StagingServices, services_of

logger = logging.getLogger(__name__)


def load_generation(services: StagingServices, config: Config, request: GenerationRequest) -> StreamTables:
    """Return the tables of a build's stream. Raises `BackfillRefused` if they are not the tables of the request."""
    stream = config.stream(request.stream)
    tables = load_tables(services.catalog, stream)
    if tables is None or str(tables.main.metadata.table_uuid) != request.table_uuid:
        raise BackfillRefused(
            f"backfill {request.id} of {request.stream} is of a table that was dropped or replaced since: request it "
            f"again"
        )
    if stream.generation != request.generation:
        raise BackfillRefused(
            f"backfill {request.id} of {request.stream} is of generation {request.generation}, and the config has "
            f"{stream.generation}"
        )
    return tables


# --- building ---------------------------------------------------------------------------------------------------------


def build_generation(
    config: Config,
    request: GenerationRequest,
    for_each: TaskRunner = in_this_process,
    *,
    slots: int = 1,
    on_step: OnStep = reach_step,
    services: StagingServices | None = None,
) -> None:
    """Build a generation up to the end of the request's range, or continue.

    `for_each` executes the tasks of partition runs, `slots` of them side by side.

    Calls `on_step` with `archived` (only for the source `kafka`), `partitioned`, `built` and `diffed`.

    Raises `BackfillRefused` if the build is cancelled, or if messages of the range can be neither archived nor read;
    `PublicationHeld` if a person has to decide about a partition run first; and what lanes and partition runs raise.
    After any of these a later call continues.
    """
    with services_of(config, services) as opened, translate_storage_errors():
        store = opened.store
        if state_of(store, request) is BackfillState.CANCELLED:
            raise BackfillRefused(f"backfill {request.id} of {request.stream} was cancelled: request it again")
        built = find_built(store, request, BuiltGeneration)
        if built is None:
            load_generation(opened, config, request)
            if request.source is BackfillSource.KAFKA:
                # Imported here: it brings the client of Kafka.
                from waybill.tables.backfill.archiving import archive_up_to

                archive_up_to(config, request.stream, request.ranges)
                on_step("archived")
            _partition_up_to(config, request, for_each, slots, opened)
            on_step("partitioned")
            built = _record_built(store, request, load_generation(opened, config, request))
            on_step("built")
        if find_diff(store, request) is None:
            _compare(config, store, request, built, load_generation(opened, config, request), for_each)
        on_step("diffed")


def _partition_up_to(
    config: Config, request: GenerationRequest, for_each: TaskRunner, slots: int, services: StagingServices
) -> None:
    """Run partition runs until the branch has the whole range."""

    def execute(job: Job, tasks: Sequence[Task]) -> Sequence[Any]:
        return for_each(partial(run_task, job), tasks)

    ensure_tables(services.catalog, config.stream(request.stream))
    before: Progress | None = None
    faults: tuple[str, ...] = ()
    while left := _left(request, progress := _progress(load_generation(services, config, request))):
        if progress == before:
            raise BackfillRefused(
                f"backfill {request.id} of {request.stream}: the archive does not hold all of the range, or cannot be "
                f"read: {left} is missing. {'; '.join(faults) or 'Its ingest may be behind'}: run it again when that "
                f"is mended"
            )
        before = progress
        report = run_partition(config, request.stream, execute, slots=slots, services=services)
        faults = report.faults
        logger.info("%s", report)


def _progress(tables: StreamTables) -> Progress:
    return read_progress(tables.main.metadata, ".".join(tables.main.name()))


def _left(request: GenerationRequest, progress: Progress) -> OffsetRanges | None:
    """Return the offsets of the range that are missing in the branch; None if none is missing."""
    left = {tp: (max(first, progress.get(tp, 0)), end) for tp, (first, end) in request.ranges}
    left = {tp: (first, end) for tp, (first, end) in left.items() if first < end}
    return OffsetRanges(left) if left else None


def _record_built(store: Store, request: GenerationRequest, tables: StreamTables) -> BuiltGeneration:
    main, quarantine = tables.main.metadata, tables.quarantine.metadata
    branch = head_of(main, target_of(main, request.generation))
    quarantine_branch = head_of(quarantine, target_of(quarantine, request.generation))
    built = BuiltGeneration(
        main=_id(head_of(main, MAIN_BRANCH)),
        quarantine=_id(head_of(quarantine, MAIN_BRANCH)),
        branch=_id(branch),
        quarantine_branch=_id(quarantine_branch),
        rows=_total_rows(branch),
        quarantined=_total_rows(quarantine_branch),
    )
    key = backfill_built_key(store.prefix, request.stream, request.id)
    existing = store.create_or_read_existing(key, built.to_json())
    return built if existing is None else BuiltGeneration.from_json(key, existing)


def _id(snapshot: Snapshot | None) -> int | None:
    return None if snapshot is None else snapshot.snapshot_id


def _total_rows(snapshot: Snapshot | None) -> int:
    summary = None if snapshot is None else snapshot.summary
    return 0 if summary is None else int(summary.additional_properties.get("total-records", 0))


# --- diff -------------------------------------------------------------------------------------------------------------


def _compare(
    config: Config,
    store: Store,
    request: GenerationRequest,
    built: BuiltGeneration,
    tables: StreamTables,
    for_each: TaskRunner,
) -> None:
    """Compare the branch with `main`, message by message, and store the diff."""
    cutter = replace(Cutter.of(config, store, request, for_each), ranges=request.compared)

    def files(table: Table, snapshot_id: int | None) -> Files:
        found: list[DataFile] = []
        if snapshot_id is not None:
            if table.metadata.snapshot_by_id(snapshot_id) is None:
                raise BackfillRefused(
                    f"backfill {request.id} of {request.stream}: a snapshot that is to be compared has expired: cancel "
                    f"it, and request it again"
                )
            found = cutter.files_of_range(table, snapshot_id)
        return Files.of(table, found)

    old = files(tables.main, built.main), files(tables.quarantine, built.quarantine)
    new = files(tables.main, built.branch), files(tables.quarantine, built.quarantine_branch)
    parts = [DiffPart(ranges, lambda: new) for ranges in _parts(request.compared)]
    make_diff(config, store, request, tables, old, parts, for_each)


def _parts(ranges: OffsetRanges) -> Iterator[OffsetRanges]:
    """Cut ranges into parts, each for one task of the comparison."""
    taken: dict[Any, tuple[int, int]] = {}
    count = 0
    for window in windows(ranges):
        for tp, (first, end) in window:
            taken[tp] = (min(first, taken.get(tp, (first, end))[0]), end)
        count += 1
        if count == WINDOWS_OF_PART:
            yield OffsetRanges(taken)
            taken, count = {}, 0
    if taken:
        yield OffsetRanges(taken)
