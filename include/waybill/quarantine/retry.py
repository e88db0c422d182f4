"""The driver of a retry: parse again, write down, commit the table, drop from the quarantine.

1. What an earlier run left unfinished is finished.
2. The chosen rows are parsed again, and what is good now is written to files for the table.
3. The retry is written down, in an object of its number that is created if absent. Whoever finds one there already, a
   rival's, takes back its own files and carries out that one.
4. The table commits the files, and that it has taken part in this retry, in one snapshot.
5. The quarantine drops the rows, and says that it has taken part, in one snapshot.

Between 4 and 5 the rows are in both tables: readers of the quarantine take those for gone that the retries between the
two tables' numbers name. Whatever dies anywhere, the next run begins at 1.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from waybill import failpoints
from waybill.config import Config, Stream
from waybill.errors import CommitConflict, ConfigError, PlanUnusable
from waybill.names import retry_key
from waybill.quarantine.choice import Choice
from waybill.quarantine.dropping import drop_rows
from waybill.quarantine.files import reachable
from waybill.quarantine.record import Retry, find_retry, new_offsets, read_offsets, record_retry
from waybill.quarantine.reparse import MAX_MESSAGES, Work, count_rows, stage_rows
from waybill.quarantine.report import RetryReport
from waybill.quarantine.view import View, open_view, retries_of
from waybill.staging.table_layout import entries_of, look_up
from waybill.store import Store
from waybill.tables import (
    RETRIES_PROPERTY,
    StreamTables,
    catalog_of,
    commit_snapshot,
    ensure_tables,
    load_tables,
    read_progress,
    read_retries,
    remove_files,
    until_committed,
)
from waybill.tables.catalog import available

__all__ = ["finish_retries", "retry_quarantine"]

logger = logging.getLogger(__name__)


def retry_quarantine(
    config: Config,
    name: str,
    choice: Choice,
    *,
    dry_run: bool = False,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    max_messages: int = MAX_MESSAGES,
) -> RetryReport:
    """Parse the chosen rows of stream `name`'s quarantine by the present config, and move what can be read now.

    In bounded memory, in this process. `dry_run`: only say what would come of it. Event times are held against bounds
    relative to `now`. A retry moves at most about `max_messages`; if there are more, others follow.

    Raises `ConfigError`, `PlanUnusable`, `ProgressLost`, `ParserBroken`, `CommitConflict`, or one of the retriable
    `StoreUnavailable` and `CatalogUnavailable`; whatever is raised, a later call goes on without loss or repetition.
    """
    began = time.monotonic()
    stream = config.stream(name)
    if stream.sink.is_files:
        raise ConfigError(
            f"stream {name} writes files, which are final once their hour is, so that nothing can be moved to them. "
            f"Take single messages out with waybill quarantine show {name} TOPIC/PARTITION@OFFSET --raw, or raise "
            f"the stream's generation to have all of the archive parsed anew"
        )
    report = RetryReport(name, dry_run)
    with Store.of(config.storage) as store, catalog_of(config) as catalog:
        if load_tables(catalog, stream) is not None:
            driver = _Driver(name, stream, store, catalog, report)
            if dry_run:
                driver.count(choice, now())
            else:
                driver.carry_out(choice, now, max_messages)
    report.seconds = round(time.monotonic() - began, 3)
    return report


def finish_retries(store: Store, catalog: Catalog, name: str, stream: Stream) -> list[int]:
    """Carry out what killed retries of stream `name`'s quarantine have left; the numbers of those that there were.

    For maintenance: the files of a retry are no orphans, and its rows not twice in the tables, but somebody has to
    finish it. Raises what `retry_quarantine` raises.
    """
    report = RetryReport(name, dry_run=False)
    if load_tables(catalog, stream) is not None and not stream.sink.is_files:
        _Driver(name, stream, store, catalog, report).finish()
    return report.finished


@dataclass(frozen=True, slots=True)
class _Driver:
    name: str
    stream: Stream
    store: Store
    catalog: Catalog
    report: RetryReport

    def count(self, choice: Choice, now: datetime) -> None:
        view = open_view(self.store, self.catalog, self.name, self.stream)
        if view is not None:
            self.report.moved, self.report.stayed = count_rows(view, self.stream, choice, now)

    def carry_out(self, choice: Choice, now: Callable[[], datetime], max_messages: int) -> None:
        while True:
            tables = self.finish()
            at, run_id = now(), uuid.uuid4().hex
            view = View.of(self.store, self.name, self.stream, tables)
            with reachable(tables.main):
                work = stage_rows(view, self.stream, choice, at, f"retry-{run_id}", max_messages)
            self.report.stayed = work.stayed
            if not len(work.offsets):
                return
            failpoints.reach("retry.staged")
            retry = self._record(tables, work, run_id, at, choice)
            if retry is None:
                continue  # a rival's retry of this number: it is finished first, and then the rows are looked at anew
            failpoints.reach("retry.recorded")
            self._commit(tables.main, retry)
            self._drop(tables, retry)
            self.report.retries.append(retry.number)
            self.report.moved += retry.rows
            if not work.has_more:
                return

    def finish(self) -> StreamTables:
        """Carry out what is unfinished, and give the tables as they are then: at the same retry, and none begun."""
        ensure_tables(self.catalog, self.stream)  # columns that the config has since may be in staged files
        while True:
            tables = load_tables(self.catalog, self.stream)
            assert tables is not None
            main, quarantine = retries_of(tables)
            retry = find_retry(self.store, self._key(tables, min(main, quarantine)))
            if retry is None:
                self._check_level(tables, main, quarantine)
                return tables
            logger.info("retry %d of the quarantine of %s is unfinished: finishing it", retry.number, self.name)
            if main <= quarantine:
                self._commit(tables.main, retry)
            self._drop(tables, retry)
            self.report.finished.append(retry.number)
            self.report.finished_messages += retry.rows

    def _check_level(self, tables: StreamTables, main: int, quarantine: int) -> None:
        if main != quarantine:
            key = self._key(tables, min(main, quarantine))
            raise PlanUnusable(
                f"table {'.'.join(tables.main.name())} has taken part in {main} retries, its quarantine in "
                f"{quarantine}, and {key}, which says what is missing, is gone: restore it"
            )

    def _key(self, tables: StreamTables, number: int) -> str:
        uuid = str(tables.main.metadata.table_uuid)
        return retry_key(self.store.prefix, self.name, self.stream.generation, uuid, number)

    # --- the steps ---

    def _record(self, tables: StreamTables, work: Work, run_id: str, at: datetime, choice: Choice) -> Retry | None:
        number = read_retries(tables.main.metadata, ".".join(tables.main.name()))
        key = self._key(tables, number)
        retry = Retry(
            key=key,
            number=number,
            run_id=run_id,
            created_at=at,
            reading=self.stream.reading,
            choice=choice.document(),
            rows=len(work.offsets),
            ranges=work.offsets.ranges,
            entries=tuple(entries_of(work.files)),
            offsets_key=new_offsets(self.store, key, work.offsets),
        )
        if record_retry(self.store, retry):
            return retry
        logger.info("another run has begun retry %d of the quarantine of %s; that one counts", number, self.name)
        self._take_back(tables.main, retry)
        return None

    def _take_back(self, main: Table, retry: Retry) -> None:
        self.store.remove(retry.offsets_key)
        remove_files(main.io, retry.files)

    def _commit(self, main: Table, retry: Retry) -> None:
        """Step 4. It may be that somebody else has carried it out."""
        name = ".".join(main.name())
        files: list[DataFile] | None = None

        def attempt() -> bool | None:
            nonlocal files
            if _is_done(main, name, retry):
                return False
            with reachable(main):
                files = _look_up(main, retry) if files is None else files
            state = {RETRIES_PROPERTY: str(retry.number + 1), **self._properties(retry)}
            return True if commit_snapshot(main, state, added=files) else None

        if until_committed(main, attempt):
            failpoints.reach("retry.committed")

    def _drop(self, tables: StreamTables, retry: Retry) -> None:
        """Step 5."""
        quarantine = tables.quarantine
        with available("load the quarantine"):
            quarantine.refresh()
        if read_retries(quarantine.metadata, ".".join(quarantine.name())) > retry.number:
            return
        moved = read_offsets(self.store, retry)
        memory_bytes = self.stream.partition.memory
        with reachable(quarantine):
            dropped = drop_rows(quarantine, moved, retry.number, self._properties(retry), memory_bytes=memory_bytes)
        if dropped:
            failpoints.reach("retry.dropped")

    def _properties(self, retry: Retry) -> dict[str, str]:
        return {"waybill.stream": self.name, "waybill.run": retry.run_id}


def _is_done(main: Table, name: str, retry: Retry) -> bool:
    found = read_retries(main.metadata, name)
    if found > retry.number:
        return True
    if found < retry.number:
        raise CommitConflict(
            f"table {name} has taken part in {found} retries, and retry {retry.number} was to be next: it was rolled "
            f"back meanwhile. Run again"
        )
    progress = read_progress(main.metadata, name)
    ahead = [tp for tp, (_, following) in retry.ranges.items() if following > progress.get(tp, 0)]
    if ahead:
        raise CommitConflict(
            f"table {name} was rolled back to before messages of {ahead[0]} that retry {retry.number} moves: let a "
            f"partition run bring it to where it was, then run again"
        )
    return False


def _look_up(main: Table, retry: Retry) -> list[DataFile]:
    try:
        return look_up(main, retry.entries)
    except FileNotFoundError as error:
        raise PlanUnusable(
            f"{retry.key} names a file that is gone, and that table {'.'.join(main.name())} does not have: {error}."
            f" Restore it. If the quarantine has not taken part in this retry either ({RETRIES_PROPERTY} of its "
            f"snapshots is at most {retry.number}), the object may be removed instead: the rows are parsed anew"
        ) from error
