"""Plan a backfill: check the request, cut it into tasks, estimate its duration, and store it."""

from __future__ import annotations

import hashlib
import itertools
import logging
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyiceberg.table.refs import MAIN_BRANCH

from waybill.archive.chain.chain import ChainObject, walk_chain
from waybill.base.errors import BackfillRefused, ChainBroken, MixedFormats, ObjectExists
from waybill.config.models import Config, Stream
from waybill.config.models.quantities import counted
from waybill.config.names import TopicPartition, backfill_request_key
from waybill.services.store import Store
from waybill.tables.backfill.choice import RangeChoice, available_ranges, resolve
from waybill.tables.backfill.events import ABANDONED_AFTER, state_of
from waybill.tables.backfill.generation_request import BackfillSource
from waybill.tables.backfill.promotion import change_range
from waybill.tables.backfill.ranges import OffsetRanges
from waybill.tables.backfill.request import BackfillRequest, find_request, list_requests
from waybill.tables.backfill.results import find_records
from waybill.tables.backfill.states import BackfillAction, BackfillState
from waybill.tables.backfill.work import reach_step
from waybill.tables.iceberg import StreamTables, ensure_tables, head_of, load_tables, read_progress
from waybill.tables.partition.partition_plan import Plan, make_plan
from waybill.tables.staging.driver import OnStep
from waybill.tables.staging.services import StagingServices, services_of

logger = logging.getLogger(__name__)

BYTES_PER_SECOND = 8 << 20
"""The assumed backup bytes that one task slot parses per second, until a backfill of the stream has measured it."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """The order of a person, or of a run of the DAG."""

    stream: str
    """The name of the stream in the config, or of the stream of another generation of its table."""
    choice: RangeChoice
    by: str
    reason: str
    generation: int | None = None
    """None: the generation of the stream."""
    source: str = BackfillSource.ARCHIVE
    slots: int = 1
    """The number of tasks that run in parallel."""
    token: str | None = None
    """Names the trigger of the backfill, such as a DAG run; the id is derived from it. None: each call requests another
    backfill."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate of a backfill."""

    stream: str
    ranges: OffsetRanges
    objects: int
    size_bytes: int
    """The size of the backup objects."""
    messages: int
    """The most messages: the number of offsets."""
    tasks: int
    bytes_per_second: float
    is_measured: bool
    """Whether a backfill of the stream has measured the speed."""
    slots: int

    @property
    def minutes(self) -> float:
        return self.size_bytes / self.bytes_per_second / max(min(self.slots, self.tasks), 1) / 60

    def document(self) -> dict[str, Any]:
        """Return the figures for a JSON document."""
        return {
            "stream": self.stream,
            "range": self.ranges.document(),
            "objects": self.objects,
            "bytes": self.size_bytes,
            "messages_at_most": self.messages,
            "tasks": self.tasks,
            "slots": self.slots,
            "bytes_per_second": round(self.bytes_per_second),
            "measured": self.is_measured,
            "minutes": round(self.minutes, 1),
        }

    def lines(self) -> list[str]:
        """Return the figures as lines for people."""
        how = "as measured in the stream's last backfill" if self.is_measured else "assumed, as none was measured yet"
        return [
            f"{self.stream}: {counted(self.objects, 'object')}, {self.size_bytes / 1e6:,.1f} MB, at most "
            f"{self.messages:,} messages, {counted(self.tasks, 'task')}, about {self.minutes:.1f} minutes with "
            f"{counted(self.slots, 'slot')} ({self.bytes_per_second / 1e6:.1f} MB/s for each, {how})",
            *(f"  {tp}@{first}-{end - 1}" for tp, (first, end) in self.ranges),
        ]


# --- checks -----------------------------------------------------------------------------------------------------------


def _check_stream(trigger: Trigger, name: str, stream: Stream, tables: StreamTables | None) -> StreamTables:
    """Return the stream's tables. Raise `BackfillRefused` if the stream cannot have this backfill."""
    if stream.sink.is_files:
        raise BackfillRefused(
            f"stream {name} writes files, and the files of a final hour are not replaced: raise the stream's "
            f"generation to build all files again"
        )
    if tables is None:
        raise BackfillRefused(f"stream {name} has no table yet: the first partition run creates it")
    if trigger.source == BackfillSource.KAFKA:
        raise BackfillRefused(
            f"generation {stream.generation} of stream {name} is live, and its chains hold these messages already: "
            f"archiving them again takes another generation. Declare a stream with `table: {stream.table}`, the same "
            f"topics and another `generation`, and give --generation"
        )
    return tables


def open_requests(store: Store, name: str, now: datetime) -> list[BackfillRequest]:
    """Return the backfills of a stream that can still be promoted."""
    return [
        request
        for request in list_requests(store, name)
        if now - request.at < ABANDONED_AFTER and state_of(store, request).is_open
    ]


def _check_overlap(store: Store, name: str, ranges: OffsetRanges, now: datetime, own: str | None = None) -> None:
    for other in open_requests(store, name, now):
        common = ranges.overlap(other.ranges)
        if other.id != own and common.by_tp:
            raise BackfillRefused(
                f"the range overlaps with backfill {other.id}, which {other.by} requested at {other.at:%Y-%m-%d %H:%M} "
                f"UTC and which is open: {common}. Promote or cancel it first: `waybill backfill cancel {name} "
                f"{other.id}`"
            )


# --- planning ---------------------------------------------------------------------------------------------------------


def plan_range(
    config: Config,
    name: str,
    trigger: Trigger,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    services: StagingServices | None = None,
) -> tuple[BackfillRequest, Estimate]:
    """Return the request of a backfill of stream `name`, which is not stored, and its estimate.

    Raises `BackfillRefused`, with the valid values, `ConfigError` for an unknown stream, `ProgressLost`, or one of the
    retriable `StoreUnavailable` and `CatalogUnavailable`.
    """
    stream = config.stream(name)
    with services_of(config, services) as opened:
        tables = _check_stream(trigger, name, stream, load_tables(opened.catalog, stream))
        progress = read_progress(tables.main.metadata, ".".join(tables.main.name()))
        ranges = resolve(trigger.choice, available_ranges(opened, stream, progress), tables)
        at = now()
        _check_overlap(opened.store, name, ranges, at)
        request = _make_request(opened, trigger, name, stream, tables, ranges, at)
        return request, estimate(opened.store, request, trigger.slots)


def request_range(
    config: Config,
    name: str,
    trigger: Trigger,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    on_step: OnStep = reach_step,
    services: StagingServices | None = None,
) -> tuple[BackfillRequest, Estimate]:
    """Store the request of a backfill of stream `name`, and return it with its estimate.

    The same token returns the same request. Calls `on_step` with `requested`. Raises as `plan_range` does.
    """
    stream = config.stream(name)
    with services_of(config, services) as opened:
        if trigger.token is not None and (known := _find_by_token(opened.store, name, trigger.token)) is not None:
            return known, estimate(opened.store, known, trigger.slots)
        ensure_tables(opened.catalog, stream)  # add the config's columns to the table
        request, figures = plan_range(config, name, trigger, now=now, services=opened)
        try:
            opened.store.create_if_absent(request.plan.key, request.to_json())
        except ObjectExists:
            known = find_request(opened.store, name, request.id)
            if known.token != request.token:
                raise BackfillRefused(f"the id {request.id} is taken already: request the backfill again") from None
            request = known
        on_step("requested")
        _withdraw_if_rivalled(config, opened, request, now)
        return request, figures


def _find_by_token(store: Store, name: str, token: str) -> BackfillRequest | None:
    return next((request for request in list_requests(store, name) if request.token == token), None)


def _withdraw_if_rivalled(
    config: Config, services: StagingServices, request: BackfillRequest, now: Callable[[], datetime]
) -> None:
    """Cancel the request again if another of the same offsets was stored at the same time; both may be cancelled."""
    try:
        _check_overlap(services.store, request.stream, request.ranges, now(), own=request.id)
    except BackfillRefused as error:
        change_range(
            config,
            request.stream,
            request.id,
            BackfillAction.CANCEL,
            by=request.by,
            reason=str(error),
            services=services,
        )
        raise


def _make_request(
    services: StagingServices,
    trigger: Trigger,
    name: str,
    stream: Stream,
    tables: StreamTables,
    ranges: OffsetRanges,
    at: datetime,
) -> BackfillRequest:
    token = trigger.token or secrets.token_hex(16)
    identifier = f"{at:%Y%m%d}_{hashlib.sha256(token.encode()).hexdigest()[:4]}"
    key = backfill_request_key(services.store.prefix, name, identifier)
    committed = services.committed_offsets(name)
    chains: dict[TopicPartition, list[ChainObject]] = {}
    in_part: set[str] = set()
    for tp, (first, end) in ranges:
        offset = committed[tp].committed_offset if tp in committed else None
        objects = _objects(services.store, stream.generation, tp, first, end, offset)
        in_part |= {found.key for found in objects if found.next_offset > end}
        chains[tp] = [replace(found, next_offset=min(found.next_offset, end)) for found in objects]
    plan = make_plan(
        key,
        stream=name,
        generation=stream.generation,
        parse_settings=stream.parse_settings,
        created_at=at,
        start={tp: first for tp, (first, _) in ranges},
        chains=chains,
        task_bytes=stream.partition.task_bytes,
        run_bytes=sys.maxsize,
        slots=trigger.slots,
    )
    if plan is None:
        raise BackfillRefused(f"the archive has no object of {ranges}")
    head = head_of(tables.main.metadata, MAIN_BRANCH)
    return BackfillRequest(
        id=identifier,
        by=trigger.by,
        reason=trigger.reason,
        token=token,
        table_uuid=str(tables.main.metadata.table_uuid),
        base=None if head is None else head.snapshot_id,
        ranges=ranges,
        objects_in_part=frozenset(in_part),
        plan=plan,
    )


def _objects(
    store: Store, generation: int, tp: TopicPartition, first: int, end: int, committed: int | None
) -> list[ChainObject]:
    walked = walk_chain(store, generation, tp, from_offset=first, committed_offset=committed)
    try:
        found = list(itertools.takewhile(lambda each: each.name.first_offset < end, walked))
    except (ChainBroken, MixedFormats) as error:
        raise BackfillRefused(f"{tp}: the archive does not hold offsets {first}–{end - 1}: {error}") from error
    reached = found[-1].next_offset if found else first
    if reached < end:
        raise BackfillRefused(f"{tp}: the archive ends at offset {reached}, before the end of the range, {end}")
    return found


# --- estimate ---------------------------------------------------------------------------------------------------------


def estimate(store: Store, request: BackfillRequest, slots: int) -> Estimate:
    """Estimate the duration of a backfill from the speed of the stream's last backfill."""
    measured = measured_speed(store, request.stream)
    plan: Plan = request.plan
    return Estimate(
        stream=request.stream,
        ranges=request.ranges,
        objects=request.objects,
        size_bytes=request.size_bytes,
        messages=request.ranges.offsets,
        tasks=len(plan.tasks),
        bytes_per_second=measured or BYTES_PER_SECOND,
        is_measured=measured is not None,
        slots=slots,
    )


def measured_speed(store: Store, name: str) -> float | None:
    """Return the bytes of backup objects that a task of the stream's last backfill parsed in a second."""
    for request in reversed(list_requests(store, name)):
        if state_of(store, request) is BackfillState.PLANNED:
            continue
        records = find_records(store, request)
        seconds = sum(record.seconds for record in records.values())
        read = sum(span.size_bytes for number in records for span in request.plan.tasks[number])
        if seconds > 0:
            return read / seconds
    return None
