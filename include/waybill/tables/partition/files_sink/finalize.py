"""The finalizer: create `_SUCCESS` in the hours of a `files` sink that will get no more rows except late ones.

An hour is final when every topic-partition of the stream has passed its end by the configured lateness. The time that a
topic-partition has reached follows from committed data: it is its newest Kafka timestamp, or the present if all
messages in Kafka are partitioned. The marker is created after a listing showed exactly the files of the inventory, and
removed again if the next listing shows others: a partition run with late rows may have begun in between
(docs/protocol.md, "Files").

The finalizer can be killed at any line, and can run at the same time as other finalizers: the next one finishes the
work.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from waybill.archive.chain import chain
from waybill.archive.chain.chain import find_chain_start
from waybill.archive.ingest.services import connect_source
from waybill.base import failpoints
from waybill.base.errors import (
    ChainBroken,
    ConfigError,
    CoordinationUnavailable,
    DocumentDamaged,
    KafkaUnavailable,
    ObjectExists,
    ObjectMissing,
)
from waybill.config import names
from waybill.config.models import Config, Stream
from waybill.config.names import FileName, SinkPeriod, TopicPartition
from waybill.services.store import ListedObject, Store
from waybill.tables.iceberg import Progress, StreamTables, load_tables, read_progress, read_watermarks
from waybill.tables.iceberg.file_inventory import (
    InventoryEntry,
    check_file_layout,
    last_sequence_number,
    read_inventory,
)
from waybill.tables.partition.files_sink.hour_state import (
    HourState,
    HourStatus,
    LogEnds,
    SuccessMarker,
    TimeReached,
    classify_hour,
    earliest_time,
    final_before,
    times_reached,
)
from waybill.tables.partition.files_sink.upload import Origin
from waybill.tables.partition.next_plan import NextPlan
from waybill.tables.staging.services import StagingServices, services_of

_MAX_NAMED_HOURS = 5
_UNKNOWN_END = (1 << 63) - 1

logger = logging.getLogger(__name__)

FetchLogEnds = Callable[[Store, datetime], LogEnds]
"""Returns the log end offsets, given a time before the call: `fetch_log_ends`, or a substitute in tests."""


@dataclass(frozen=True, slots=True)
class FinalizeReport:
    """The findings and actions of a finalizer."""

    stream: str
    final_before: datetime | None
    behind: tuple[TimeReached, ...]
    """The topic-partitions, the one with the earliest time first."""
    hours: tuple[HourStatus, ...]
    """All hours, with their status at the end."""
    marked: tuple[SinkPeriod, ...]
    unmarked: tuple[SinkPeriod, ...]
    removed: tuple[str, ...]
    """Keys of removed files, whose plans ended without a commit."""
    notes: tuple[str, ...]

    @property
    def blocked(self) -> list[HourStatus]:
        """Hours that cannot become final until a person resolves the difference."""
        return [hour for hour in self.hours if hour.state is HourState.BLOCKED]

    def document(self) -> dict[str, Any]:
        """Return the report for a JSON file."""
        return {
            "v": 1,
            "stream": self.stream,
            "final_before": self.final_before and self.final_before.isoformat(timespec="seconds"),
            "behind": [str(time) for time in self.behind],
            "hours": [
                {
                    "hour": str(hour.period),
                    "state": str(hour.state),
                    **dataclasses.asdict(hour.wanted),
                    "missing": list(hour.missing),
                    "strays": list(hour.strays),
                }
                for hour in self.hours
            ],
            "marked": [str(period) for period in self.marked],
            "unmarked": [str(period) for period in self.unmarked],
            "removed": list(self.removed),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        states = [hour.state for hour in self.hours]
        behind = f", waits for {self.behind[0]}" if self.behind and HourState.OPEN in states else ""
        until = f"{self.final_before:%Y-%m-%dT%H:%M:%SZ}" if self.final_before else "no time"
        return (
            f"finalized {self.stream} up to {until}: {len(self.marked):,} hours marked, {len(self.unmarked):,} "
            f"unmarked, {states.count(HourState.FINAL):,} are final, {states.count(HourState.OPEN):,} open, "
            f"{states.count(HourState.BLOCKED):,} blocked{behind}"
        )


def finalize(
    config: Config,
    name: str,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    fetch: FetchLogEnds | None = None,
    dry_run: bool = False,
    services: StagingServices | None = None,
) -> FinalizeReport:
    """Mark the final hours of stream `name`. With `dry_run`, only report the actions.

    `services`: those to use; without them it opens and closes its own.

    Raises `ConfigError` for a stream whose sink is not `files`, `ProgressLost`, or one of the retriable
    `StoreUnavailable` and `CatalogUnavailable`. Without Kafka or ZooKeeper it relies on committed data alone.
    """
    stream = config.stream(name)
    if not stream.sink.is_files:
        raise ConfigError(f"stream {name!r} has the sink {stream.sink.name}: only files are marked as final")
    with services_of(config, services) as opened:
        fetch = fetch or (lambda store, at: fetch_log_ends(config, name, store, at))
        return _Finalizer(config, name, stream, opened.store, now, fetch, dry_run).run(opened.catalog)


def hours_blocked(report: FinalizeReport) -> str:
    """Return the message about hours that cannot become final, with the first of them."""
    hours = "; ".join(
        f"{hour.period}: {len(hour.missing)} files missing, {len(hour.strays)} not listed"
        for hour in report.blocked[:_MAX_NAMED_HOURS]
    )
    return (
        f"{report.stream}: the files of {len(report.blocked):,} hours differ from the file inventory ({hours}); these "
        f"hours cannot become final. The details: waybill finalize {report.stream} --dry-run"
    )


def fetch_log_ends(config: Config, name: str, store: Store, asked_at: datetime) -> LogEnds:
    """Return the log ends of a stream's topic-partitions, and the chain ends of topics that Kafka no longer has."""
    stream = config.stream(name)
    try:
        with connect_source(config, name) as (source, coordinator):
            stopped = frozenset(stop.tp for stop in coordinator.list_stops())
            in_kafka = source.topic_partitions(stream)
            if stream.is_kinesis:
                from waybill.archive.ingest.kinesis.slot_source import slots_of

                # Log ends are unknown, but the time up to which the slots are archived is known. Read it before the
                # offsets.
                asked_at = min(asked_at, _time_of(slots_of(source).archived_to_ms() or 0))
            logs = source.offsets_briefly(in_kafka)
    except (KafkaUnavailable, CoordinationUnavailable, ConfigError, DocumentDamaged) as error:
        return LogEnds(asked_at, {}, problem=str(error))
    ends = {tp: log.end for tp, log in logs.items()}
    for tp in set(_archived_partitions(store, stream)) - set(in_kafka):
        try:
            ends[tp] = chain.read_chain_end(store, stream.generation, tp) or 0
        except ChainBroken as error:
            logger.warning("%s", error)
    # A topic-partition whose leader does not answer still exists: count it as behind.
    ends = {**dict.fromkeys(in_kafka, _UNKNOWN_END), **ends}
    empty = frozenset(tp for tp, log in logs.items() if log.earliest == log.end)
    return LogEnds(asked_at, ends, empty, stopped)


def _time_of(epoch_ms: int) -> datetime:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC)


def _archived_partitions(store: Store, stream: Stream) -> Iterator[TopicPartition]:
    for topic in store.topics():
        if stream.matches(topic):
            yield from (found.tp for found in store.chains(topic) if found.generation == stream.generation)


@dataclass(slots=True)
class _Finalizer:
    config: Config
    name: str
    stream: Stream
    store: Store
    now: Callable[[], datetime]
    fetch: FetchLogEnds
    dry_run: bool

    def run(self, catalog: Catalog) -> FinalizeReport:
        # Ask Kafka first, then read the progress: then progress beyond a log end means that all messages were
        # partitioned.
        log_ends = self.fetch(self.store, self.now())
        notes = [f"going by what is committed alone: {log_ends.problem}"] if log_ends.problem else []
        tables = load_tables(catalog, self.stream)
        if tables is None:
            return FinalizeReport(self.name, None, (), (), (), (), (), (*notes, "there is no table yet"))
        inventory = tables.main
        check_file_layout(inventory, self.stream)
        progress = read_progress(inventory.metadata, self._table_name(inventory))
        behind = self._times_reached(inventory, progress, log_ends)
        until = final_before(earliest_time(behind), self.stream.sink.lateness)
        entries = self._entries(inventory)
        if self._has_open_plan(tables):
            notes.append("a partition run is under way, was cut, or is held: nothing is marked before it is published")
            hours = [self._classify(period, entries, listed, until) for period, listed in self._hours(entries)]
            return FinalizeReport(self.name, until, behind, tuple(hours), (), (), (), tuple(notes))
        marking = _Marking(self, tables, entries, until)
        hours = [marking.update_marker(period, listed) for period, listed in self._hours(entries)]
        changes = (tuple(marking.marked), tuple(marking.unmarked), tuple(marking.removed))
        return FinalizeReport(self.name, until, behind, tuple(hours), *changes, tuple(notes))

    def _times_reached(self, inventory: Table, progress: Progress, log_ends: LogEnds) -> tuple[TimeReached, ...]:
        archived = set(_archived_partitions(self.store, self.stream))
        tps = {*archived, *progress, *log_ends.ends}
        started = {**dict.fromkeys(archived, 0), **progress}
        for tp in tps - progress.keys():
            start = find_chain_start(self.store, self.stream.generation, tp)
            if start is not None:
                started[tp] = start.offset
        watermarks = read_watermarks(inventory.metadata, self._table_name(inventory))
        return tuple(times_reached(tps, started, watermarks, log_ends))

    def _has_open_plan(self, tables: StreamTables) -> bool:
        """Return whether a plan starts at the inventory's progress: a run may write its files at any time."""
        return self.store.exists(NextPlan.of(self.store, self.name, self.stream, tables).key)

    def _entries(self, inventory: Table) -> Mapping[SinkPeriod, list[InventoryEntry]]:
        by_hour = self.stream.by_hour
        entries: dict[SinkPeriod, list[InventoryEntry]] = defaultdict(list)
        for entry in read_inventory(inventory):
            entries[entry.period(by_hour=by_hour)].append(entry)
        return entries

    def _hours(self, entries: Mapping[SinkPeriod, object]) -> Iterator[tuple[SinkPeriod, list[ListedObject]]]:
        """Yield every hour that has a directory or an inventory entry, with the objects in its directory."""
        listed: dict[SinkPeriod, list[ListedObject]] = {period: [] for period in entries}
        for found in self.store.list_objects(f"{self.root}/"):
            period = names.period_of_key(self.root, found.key)
            if period is not None:
                listed.setdefault(period, []).append(found)
        failpoints.reach("finalize.listed")
        yield from sorted(listed.items())

    @property
    def root(self) -> str:
        return self.config.files_root(self.name)

    def _classify(
        self,
        period: SinkPeriod,
        entries: Mapping[SinkPeriod, list[InventoryEntry]],
        listed: Sequence[ListedObject],
        until: datetime | None,
    ) -> HourStatus:
        wanted = SuccessMarker.of(entries.get(period, []))
        is_marked, marker = self._find_marker(period, listed, wanted)
        return classify_hour(
            period,
            entries.get(period, []),
            [found for found in listed if found.key.rsplit("/", 1)[-1][0] not in "_."],
            marker,
            is_marked=is_marked,
            final_before=until,
        )

    def _find_marker(
        self, period: SinkPeriod, listed: Sequence[ListedObject], wanted: SuccessMarker
    ) -> tuple[bool, SuccessMarker | None]:
        """Return whether the hour has a marker, and its content if readable. Mostly the listed ETag suffices."""
        key = names.success_key(self.root, period)
        existing = next((found for found in listed if found.key == key), None)
        if existing is None:
            return False, None
        if wanted.matches_etag(existing):
            return True, wanted
        content = self.store.read_if_exists(key)
        return content is not None, None if content is None else SuccessMarker.parse(key, content)

    @staticmethod
    def _table_name(table: Table) -> str:
        return ".".join(table.name())


class _Marking:
    """Creates and removes the markers of one finalizer, by one snapshot of the inventory."""

    def __init__(
        self,
        finalizer: _Finalizer,
        tables: StreamTables,
        entries: Mapping[SinkPeriod, list[InventoryEntry]],
        until: datetime | None,
    ) -> None:
        self._finalizer = finalizer
        self._tables = tables
        self._inventory = tables.main
        self._entries = entries
        self._until = until
        self.marked: list[SinkPeriod] = []
        self.unmarked: list[SinkPeriod] = []
        self.removed: list[str] = []

    def update_marker(self, period: SinkPeriod, listed: Sequence[ListedObject]) -> HourStatus:
        """Create or remove the hour's marker, as its status requires, and return the status afterwards."""
        status = self._classify(period, listed)
        if self._finalizer.dry_run:
            return status
        if status.has_stale_marker:
            self._unmark(period)
        if status.strays and self._remove_leftovers(status):
            status = self._list_and_classify(period)
        if status.state is not HourState.READY:
            return status
        if not self._mark(status):
            return self._list_and_classify(period)
        # Between listing and marker a run may have created a file, after it had looked for a marker to remove.
        after = self._list_and_classify(period)
        if after.has_stale_marker:
            self._unmark(period)
        return after

    def _mark(self, status: HourStatus) -> bool:
        finalizer = self._finalizer
        key = names.success_key(finalizer.root, status.period)
        try:
            finalizer.store.create_if_absent(key, status.wanted.to_json())
        except ObjectExists:
            return False  # another finalizer created it, and removes it if necessary
        failpoints.reach("finalize.marked")
        self.marked.append(status.period)
        return True

    def _unmark(self, period: SinkPeriod) -> None:
        self._finalizer.store.remove(names.success_key(self._finalizer.root, period))
        self.unmarked.append(period)

    def _remove_leftovers(self, status: HourStatus) -> bool:
        """Remove the files of plans that ended without a commit. Return whether any was removed."""
        removed = [key for key in status.strays if self._is_leftover(status.period, key)]
        for key in removed:
            logger.warning("removed %s: the plan that wrote it ended without a commit", key)
            self._finalizer.store.remove(key)
        self.removed += removed
        return bool(removed)

    def _is_leftover(self, period: SinkPeriod, key: str) -> bool:
        """Return whether the inventory can never list this file, because its plan has ended.

        The execution of an ended plan began before the inventory's newest snapshot, which ended the plan or came later.
        A plan that has not ended starts at the present progress, and then `_has_open_plan` is true.
        """
        finalizer = self._finalizer
        try:
            name = FileName.parse(finalizer.root, key)
            found = finalizer.store.describe(key)
        except (ValueError, ObjectMissing):
            return False
        origin = Origin.of(found.metadata)
        return (
            name.period == period
            and name.generation == finalizer.stream.generation
            and origin is not None
            and origin.inventory == str(self._inventory.metadata.table_uuid)
            and origin.sequence < last_sequence_number(self._inventory)
            and not finalizer._has_open_plan(self._tables)
        )

    def _list_and_classify(self, period: SinkPeriod) -> HourStatus:
        return self._classify(period, list(self._finalizer.store.list_objects(period.prefix(self._finalizer.root))))

    def _classify(self, period: SinkPeriod, listed: Sequence[ListedObject]) -> HourStatus:
        return self._finalizer._classify(period, self._entries, listed, self._until)
