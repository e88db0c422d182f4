"""The finalizer: gives `_SUCCESS` to the hours of a `files` sink that get no more rows but late ones.

An hour is final when every topic-partition of the stream has come past its end by the configured lateness, by what is
committed: to where its newest Kafka timestamp is, or to now if all that Kafka has of it is partitioned. The marker is
set after the directory was found to hold just the files that the ledger lists, and taken back if it holds others after
that: a partition run that brings late rows may have begun meanwhile (docs/protocol.md, "Files").

It may be killed anywhere, and run beside any number of others: what it does not do, the next one does.
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

from waybill import failpoints, names
from waybill.archive import chain
from waybill.archive.chain import find_start
from waybill.config import Config, Stream
from waybill.errors import (
    ChainBroken,
    ConfigError,
    CoordinationUnavailable,
    KafkaUnavailable,
    ObjectAlreadyThere,
    ObjectMissing,
)
from waybill.ingest.services import connect_source
from waybill.names import FileName, Period, TopicPartition
from waybill.partition.files_sink.delivery import Origin
from waybill.partition.files_sink.finality import (
    Finding,
    LogView,
    Marker,
    Standing,
    State,
    final_before,
    judge,
    reached_by_all,
    standings,
)
from waybill.store import ListedObject, Store
from waybill.tables import Progress, catalog_of, load_tables, read_left_out, read_progress, read_watermarks
from waybill.tables.file_inventory import LedgerEntry, check_sink, read_ledger, sequence_of

__all__ = ["Finalized", "ask_log", "finalize"]

logger = logging.getLogger(__name__)

AskLog = Callable[[Store, datetime], LogView]
"""How a finalizer learns where the log ends: `ask_log`, or in tests something else."""


@dataclass(frozen=True, slots=True)
class Finalized:
    """What a finalizer found and did."""

    stream: str
    final_before: datetime | None
    behind: tuple[Standing, ...]
    """The topic-partitions, the one that is furthest behind first."""
    hours: tuple[Finding, ...]
    """All there are, after what was done."""
    marked: tuple[Period, ...]
    unmarked: tuple[Period, ...]
    removed: tuple[str, ...]
    """Keys of files of plans that came to nothing."""
    notes: tuple[str, ...]

    @property
    def blocked(self) -> list[Finding]:
        """Hours that cannot become final before somebody looks."""
        return [hour for hour in self.hours if hour.state is State.BLOCKED]

    def document(self) -> dict[str, Any]:
        """For a JSON file."""
        return {
            "v": 1,
            "stream": self.stream,
            "final_before": self.final_before and self.final_before.isoformat(timespec="seconds"),
            "behind": [str(standing) for standing in self.behind],
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
        behind = f", waits for {self.behind[0]}" if self.behind and State.OPEN in states else ""
        until = f"{self.final_before:%Y-%m-%dT%H:%M:%SZ}" if self.final_before else "no time"
        return (
            f"finalized {self.stream} up to {until}: {len(self.marked):,} hours marked, {len(self.unmarked):,} taken "
            f"back, {states.count(State.FINAL):,} are final, {states.count(State.OPEN):,} open, "
            f"{states.count(State.BLOCKED):,} blocked{behind}"
        )


def finalize(
    config: Config,
    name: str,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ask: AskLog | None = None,
    dry_run: bool = False,
) -> Finalized:
    """Mark what is final of the stream `name`; with `dry_run` only say what would be done.

    Raises `ConfigError` for a stream whose sink is not `files`, `ProgressLost`, or one of the retriable
    `StoreUnavailable` and `CatalogUnavailable`. Without Kafka or ZooKeeper it goes by what is committed alone.
    """
    stream = config.stream(name)
    if not stream.sink.is_files:
        raise ConfigError(f"stream {name!r} has the sink {stream.sink.name}: only files are marked as final")
    with Store.of(config.storage) as store, catalog_of(config) as catalog:
        asking = ask or (lambda store, at: ask_log(config, name, store, at))
        return _Finalizer(config, name, stream, store, now, asking, dry_run).carry_out(catalog)


def ask_log(config: Config, name: str, store: Store, asked_at: datetime) -> LogView:
    """Where the logs of a stream's topic-partitions end, and those of chains whose topic Kafka no longer has."""
    stream = config.stream(name)
    try:
        with connect_source(config, name) as (source, coordinator):
            stopped = frozenset(stop.tp for stop in coordinator.list_stops())
            in_kafka = source.topic_partitions(stream)
            logs = source.offsets_briefly(in_kafka)
    except (KafkaUnavailable, CoordinationUnavailable, ConfigError) as error:
        return LogView(asked_at, {}, problem=str(error))
    ends = {tp: held.end for tp, held in logs.items()}
    for tp in set(_chains(store, stream)) - set(in_kafka):
        try:
            ends[tp] = chain.end_offset(store, stream.generation, tp) or 0
        except ChainBroken as error:
            logger.warning("%s", error)
    # One whose leader does not answer is there all the same, and is behind for all that is known.
    ends = {**dict.fromkeys(in_kafka, _UNKNOWN_END), **ends}
    return LogView(asked_at, ends, frozenset(tp for tp, held in logs.items() if held.earliest == held.end), stopped)


_UNKNOWN_END = (1 << 63) - 1


def _chains(store: Store, stream: Stream) -> Iterator[TopicPartition]:
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
    ask: AskLog
    dry_run: bool

    def carry_out(self, catalog: Catalog) -> Finalized:
        # In this order: what Kafka had when it was asked is partitioned if the progress that is read after says so.
        view = self.ask(self.store, self.now())
        notes = [f"going by what is committed alone: {view.problem}"] if view.problem else []
        tables = load_tables(catalog, self.stream)
        if tables is None:
            return Finalized(self.name, None, (), (), (), (), (), (*notes, "there is no table yet"))
        ledger = tables.main
        check_sink(ledger, self.stream)
        progress = read_progress(ledger.metadata, self._table_name(ledger))
        behind = self._standings(ledger, progress, view)
        until = final_before(reached_by_all(behind), self.stream.sink.lateness)
        entries = self._entries(ledger)
        if self._plan_in_hand(ledger, progress):
            notes.append("a partition run is under way, or was cut: nothing is marked before it is committed")
            hours = [self._judge(period, entries, listed, until) for period, listed in self._hours(entries)]
            return Finalized(self.name, until, behind, tuple(hours), (), (), (), tuple(notes))
        round_ = _Round(self, ledger, progress, entries, until)
        hours = [round_.settle(period, listed) for period, listed in self._hours(entries)]
        done = (tuple(round_.marked), tuple(round_.unmarked), tuple(round_.removed))
        return Finalized(self.name, until, behind, tuple(hours), *done, tuple(notes))

    def _standings(self, ledger: Table, progress: Progress, view: LogView) -> tuple[Standing, ...]:
        chains = set(_chains(self.store, self.stream))
        tps = {*chains, *progress, *view.ends}
        started = {**dict.fromkeys(chains, 0), **progress}
        for tp in tps - progress.keys():
            start = find_start(self.store, self.stream.generation, tp)
            if start is not None:
                started[tp] = start.offset
        watermarks = read_watermarks(ledger.metadata, self._table_name(ledger))
        return tuple(standings(tps, started, watermarks, view))

    def _plan_in_hand(self, ledger: Table, progress: Progress) -> bool:
        """Whether there is a plan that starts where the ledger is: files may be written by it at any time."""
        attempt = read_left_out(ledger.metadata).attempt
        uuid, prefix = str(ledger.metadata.table_uuid), self.config.storage.prefix
        key = names.plan_key(prefix, self.name, self.stream.generation, uuid, progress, attempt)
        return self.store.exists(key)

    def _entries(self, ledger: Table) -> Mapping[Period, list[LedgerEntry]]:
        by_hour = self.stream.by_hour
        found: dict[Period, list[LedgerEntry]] = defaultdict(list)
        for entry in read_ledger(ledger):
            found[entry.period(by_hour=by_hour)].append(entry)
        return found

    def _hours(self, entries: Mapping[Period, object]) -> Iterator[tuple[Period, list[ListedObject]]]:
        """Every directory that there is or should be, and what it holds; one after the other as they are listed."""
        listed: dict[Period, list[ListedObject]] = {period: [] for period in entries}
        for found in self.store.list_objects(f"{self.root}/"):
            period = names.period_of(self.root, found.key)
            if period is not None:
                listed.setdefault(period, []).append(found)
        failpoints.reach("finalize.listed")
        yield from sorted(listed.items())

    @property
    def root(self) -> str:
        return self.config.files_root(self.name)

    def _judge(
        self,
        period: Period,
        entries: Mapping[Period, list[LedgerEntry]],
        listed: Sequence[ListedObject],
        until: datetime | None,
    ) -> Finding:
        wanted = Marker.of(entries.get(period, []))
        is_marked, marker = self._find_marker(period, listed, wanted)
        return judge(
            period,
            entries.get(period, []),
            [found for found in listed if found.key.rsplit("/", 1)[-1][0] not in "_."],
            marker,
            is_marked=is_marked,
            final_before=until,
        )

    def _find_marker(
        self, period: Period, listed: Sequence[ListedObject], wanted: Marker
    ) -> tuple[bool, Marker | None]:
        """Whether the hour has a marker, and what that says, if it can be read. Mostly the listing tells."""
        key = names.success_key(self.root, period)
        there = next((found for found in listed if found.key == key), None)
        if there is None:
            return False, None
        if wanted.is_in(there):
            return True, wanted
        content = self.store.read_if_there(key)
        return content is not None, None if content is None else Marker.from_json(content, key)

    @staticmethod
    def _table_name(table: Table) -> str:
        return ".".join(table.name())


class _Round:
    """What one finalizer does, by one look at the ledger."""

    def __init__(
        self,
        finalizer: _Finalizer,
        ledger: Table,
        progress: Progress,
        entries: Mapping[Period, list[LedgerEntry]],
        until: datetime | None,
    ) -> None:
        self._finalizer = finalizer
        self._ledger = ledger
        self._progress = progress
        self._entries = entries
        self._until = until
        self.marked: list[Period] = []
        self.unmarked: list[Period] = []
        self.removed: list[str] = []

    def settle(self, period: Period, listed: Sequence[ListedObject]) -> Finding:
        """See to it that the hour has its marker if, and only if, it should have one."""
        finding = self._judge(period, listed)
        if self._finalizer.dry_run:
            return finding
        if finding.must_lose_marker:
            self._unmark(period)
        if finding.strays and self._remove(finding):
            finding = self._look_again(period)
        if finding.state is not State.READY:
            return finding
        if not self._mark(finding):
            return self._look_again(period)
        # In between a run may have begun that brought a file, and looked for the marker before it was there.
        after = self._look_again(period)
        if after.must_lose_marker:
            self._unmark(period)
        return after

    def _mark(self, finding: Finding) -> bool:
        finalizer = self._finalizer
        key = names.success_key(finalizer.root, finding.period)
        try:
            finalizer.store.create_if_absent(key, finding.wanted.to_json())
        except ObjectAlreadyThere:
            return False  # another finalizer's, and its to take back
        failpoints.reach("finalize.marked")
        self.marked.append(finding.period)
        return True

    def _unmark(self, period: Period) -> None:
        self._finalizer.store.remove(names.success_key(self._finalizer.root, period))
        self.unmarked.append(period)

    def _remove(self, finding: Finding) -> bool:
        """Remove the files of plans that came to nothing. Whether any was removed."""
        removed = [key for key in finding.strays if self._is_left_over(finding.period, key)]
        for key in removed:
            logger.warning("%s: removed, a file of a plan that came to nothing", key)
            self._finalizer.store.remove(key)
        self.removed += removed
        return bool(removed)

    def _is_left_over(self, period: Period, key: str) -> bool:
        """Whether a file that the ledger does not list can never be listed: its plan is over, and was not this one.

        A plan that is over was taken up before the ledger's newest snapshot, which ended it or came after. One that was
        not over would be in hand.
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
            and origin.ledger == str(self._ledger.metadata.table_uuid)
            and origin.sequence < sequence_of(self._ledger)
            and not finalizer._plan_in_hand(self._ledger, self._progress)
        )

    def _look_again(self, period: Period) -> Finding:
        return self._judge(period, list(self._finalizer.store.list_objects(period.prefix(self._finalizer.root))))

    def _judge(self, period: Period, listed: Sequence[ListedObject]) -> Finding:
        return self._finalizer._judge(period, self._entries, listed, self._until)
