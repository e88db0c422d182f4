"""Plan a generation build: find the generation in the config, check and estimate the request, and store it."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.table.refs import MAIN_BRANCH

from waybill.base.errors import BackfillRefused, ObjectExists
from waybill.config.models import Config, Stream
from waybill.config.names import TopicPartition
from waybill.services.store import Store
from waybill.tables.backfill.choice import bounded_ranges
from waybill.tables.backfill.events import ABANDONED_AFTER, state_of
from waybill.tables.backfill.generation_request import BackfillSource, GenerationRequest, list_generation_requests
from waybill.tables.backfill.planning import BYTES_PER_SECOND, Estimate, Trigger, measured_speed
from waybill.tables.backfill.ranges import OffsetRanges
from waybill.tables.backfill.work import reach_step
from waybill.tables.iceberg import StreamTables, is_live, load_tables, metadata_at, read_progress
from waybill.tables.iceberg.generations import live_generation
from waybill.tables.partition.partition_plan import list_chains
from waybill.tables.staging.driver import OnStep
from waybill.tables.staging.services import StagingServices, services_of


def find_stream(config: Config, name: str, generation: int | None) -> str:
    """Return the stream that has a generation of the table of stream `name`. `generation` None: that of `name` itself.

    Raises `BackfillRefused`, with the existing generations, and `ConfigError` for an unknown stream.
    """
    stream = config.stream(name)
    known = {other.generation: each for each, other in config.streams.items() if other.table == stream.table}
    if generation is None:
        return name
    if generation not in known:
        listed = ", ".join(f"{number} (stream {each})" for number, each in sorted(known.items()))
        raise BackfillRefused(
            f"stream {name} has no generation {generation} in the config; it has: {listed}. To build another one "
            f"beside the live one, declare a stream with `table: {stream.table}` and `generation: {generation}`"
        )
    return known[generation]


def is_generation_build(stream: Stream, tables: StreamTables | None) -> bool:
    """Return whether the stream's table exists and its live generation is not the stream's."""
    return tables is not None and not is_live(tables.main.metadata, stream.generation)


# --- planning ---------------------------------------------------------------------------------------------------------


def plan_generation(
    config: Config,
    name: str,
    trigger: Trigger,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    services: StagingServices | None = None,
) -> tuple[GenerationRequest, Estimate]:
    """Return the request to build the generation of stream `name`, which is not stored, and its estimate.

    Raises `BackfillRefused`, with the valid values, `ConfigError`, or one of the retriable `KafkaUnavailable`,
    `CoordinationUnavailable`, `StoreUnavailable` and `CatalogUnavailable`.
    """
    stream = config.stream(name)
    with services_of(config, services) as opened:
        tables = load_tables(opened.catalog, stream)
        assert tables is not None  # `is_generation_build`
        _check(trigger, name, stream)
        found = _find_available(config, name, tables, opened, BackfillSource(trigger.source))
        ranges = bounded_ranges(trigger.choice, found.ranges)
        at = now()
        other = next(iter(_open_builds(opened.store, name, at)), None)
        if other is not None:
            raise BackfillRefused(
                f"generation {stream.generation} is being built by backfill {other.id}, which {other.by} requested at "
                f"{other.at:%Y-%m-%d %H:%M} UTC: continue it with `waybill backfill run {name} --id {other.id}`, or "
                f"promote or cancel it first"
            )
        token = trigger.token or secrets.token_hex(16)
        live = live_generation(tables.main)
        assert live is not None  # else the stream's generation counts as live
        request = GenerationRequest(
            id=f"{at:%Y%m%d}_{hashlib.sha256(token.encode()).hexdigest()[:4]}",
            stream=name,
            generation=stream.generation,
            live=live,
            by=trigger.by,
            reason=trigger.reason,
            token=token,
            at=at,
            table_uuid=str(tables.main.metadata.table_uuid),
            source=BackfillSource(trigger.source),
            ranges=ranges,
            compared=_compared(opened.store, tables, live, ranges, everything=trigger.choice.everything),
        )
        return request, _estimate(opened.store, request, found, stream, trigger.slots)


def request_generation(
    config: Config,
    name: str,
    trigger: Trigger,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    on_step: OnStep = reach_step,
    services: StagingServices | None = None,
) -> tuple[GenerationRequest, Estimate]:
    """Store the request to build the generation of stream `name`, and return it with its estimate.

    Calls `on_step` with `requested`. Raises as `plan_generation` does.
    """
    with services_of(config, services) as opened:
        known = _find_by_token(opened, name, trigger)
        if known is not None:
            stream = config.stream(name)
            tables = load_tables(opened.catalog, stream)
            assert tables is not None  # `is_generation_build`
            found = _find_available(config, name, tables, opened, known.source)
            return known, _estimate(opened.store, known, found, stream, trigger.slots)
        request, figures = plan_generation(config, name, trigger, now=now, services=opened)
        try:
            opened.store.create_if_absent(request.key(opened.store), request.to_json())
        except ObjectExists:
            raise BackfillRefused(f"the id {request.id} is taken already: request the backfill again") from None
        on_step("requested")
        return request, figures


def _open_builds(store: Store, name: str, now: datetime) -> list[GenerationRequest]:
    """Return the builds of a stream's generation that are neither promoted nor cancelled nor abandoned."""
    return [
        request
        for request in list_generation_requests(store, name)
        if now - request.at < ABANDONED_AFTER and state_of(store, request).is_open
    ]


def _find_by_token(services: StagingServices, name: str, trigger: Trigger) -> GenerationRequest | None:
    if trigger.token is None:
        return None
    requests = list_generation_requests(services.store, name)
    return next((request for request in requests if request.token == trigger.token), None)


def _check(trigger: Trigger, name: str, stream: Stream) -> None:
    if stream.sink.is_files:
        raise BackfillRefused(
            f"stream {name} writes files: its partition runs build generation {stream.generation} by themselves, "
            f"beside the files of the others. A backfill cannot compare or promote files"
        )
    if trigger.choice.since is not None or trigger.choice.until is not None:
        raise BackfillRefused(
            f"generation {stream.generation} is not live, and is built from the start of its chains on: choose "
            f"everything, topic-partitions or offsets instead of times"
        )


@dataclass(frozen=True, slots=True)
class _Available:
    """The offsets that the generation can have, and the work that is left."""

    ranges: OffsetRanges
    objects: int
    """Backup objects that no partition run has read."""
    size_bytes: int


def _find_available(
    config: Config, name: str, tables: StreamTables, services: StagingServices, source: BackfillSource
) -> _Available:
    stream = config.stream(name)
    progress = read_progress(tables.main.metadata, ".".join(tables.main.name()))
    committed = services.committed_offsets(name)
    topics = services.archived_topics(stream)
    chains, _ = list_chains(services.store, topics, stream.generation, {}, committed)
    archived: dict[TopicPartition, tuple[int, int]] = {
        tp: (objects[0].name.first_offset, objects[-1].next_offset) for tp, objects in chains.items() if objects
    }
    left = [each for tp, objects in chains.items() for each in objects if each.next_offset > progress.get(tp, 0)]
    size = sum(each.size_bytes for each in left)
    if source is BackfillSource.ARCHIVE:
        if not archived:
            raise BackfillRefused(
                f"the archive has nothing of generation {stream.generation} (stream {name}): the stream's ingest "
                f"archives it, or `--source kafka` does"
            )
        return _Available(OffsetRanges(archived), len(left), size)
    # Imported here: it brings the client of Kafka.
    from waybill.tables.backfill.archiving import find_in_kafka

    in_kafka = find_in_kafka(config, name, services.store)
    if not in_kafka.ranges.by_tp:
        raise BackfillRefused(f"Kafka has no message of stream {name}: {', '.join(map(str, stream.topics))}")
    # An estimate: each object has at most `upload.max_bytes`.
    more = math.ceil(in_kafka.missing_bytes / int(stream.upload.max_bytes)) if in_kafka.missing_bytes else 0
    return _Available(in_kafka.ranges, len(left) + more, size + in_kafka.missing_bytes)


def _compared(store: Store, tables: StreamTables, live: int, ranges: OffsetRanges, *, everything: bool) -> OffsetRanges:
    """Return the ranges that the diff compares.

    If everything was chosen, they include rows that only `main` has, since a promotion removes them.
    """
    if not everything:
        return ranges
    progress = read_progress(metadata_at(tables.main.metadata, MAIN_BRANCH), ".".join(tables.main.name()))
    found = dict(ranges.by_tp)
    for tp, end in progress.items():
        oldest = next(store.list_chain(tp.topic, live, tp.partition), None)
        first = 0 if oldest is None else oldest.name.first_offset
        if tp in found:
            found[tp] = (min(first, found[tp][0]), found[tp][1])
        elif first < end:
            found[tp] = (first, end)
    return OffsetRanges(found)


def _estimate(store: Store, request: GenerationRequest, found: _Available, stream: Stream, slots: int) -> Estimate:
    measured = measured_speed(store, request.stream)
    return Estimate(
        stream=request.stream,
        ranges=request.ranges,
        objects=found.objects,
        size_bytes=found.size_bytes,
        messages=request.ranges.offsets,
        tasks=math.ceil(found.size_bytes / int(stream.partition.task_bytes)),
        bytes_per_second=measured or BYTES_PER_SECOND,
        is_measured=measured is not None,
        slots=slots,
    )
