"""One stream: its tables as they are now, then its chains, then the ones against the others."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial

from pyiceberg.catalog import Catalog

from waybill import names
from waybill.archive import gaps
from waybill.config import Stream
from waybill.errors import PlanUnusable, ProgressLost, StoreUnavailable
from waybill.names import TopicPartition
from waybill.quarantine import Offsets, moved_offsets
from waybill.store import Store
from waybill.tables import DedupTables, Progress, StreamTables, load_dedup_tables, load_tables, read_progress
from waybill.verify.archive import ReadCommitted, check_archive
from waybill.verify.files import LedgerFiles, check_directories
from waybill.verify.keys import check_keys
from waybill.verify.report import Fault, FaultKind, Listener, Report, first_line
from waybill.verify.rows import WINDOW_OFFSETS, check_rows, row_ranges
from waybill.verify.unique import check_unique

__all__ = ["verify_stream"]


def verify_stream(
    name: str,
    stream: Stream,
    *,
    store: Store,
    committed: ReadCommitted,
    known: Collection[TopicPartition],
    catalog: Catalog | None,
    listener: Listener,
    keys: bool = False,
    window_offsets: int = WINDOW_OFFSETS,
) -> Report:
    """Read the archive of a stream's generation, and hold its tables against it if there is a `catalog`.

    `keys`: and see whether dedup has found every duplicate, and no other.

    `committed` reads the committed offset of a topic-partition, now; `known` are the topic-partitions that have one,
    which are looked at even if they have no object left. Ingest and partition may go on meanwhile: what they add is
    not looked at, and confuses nothing.

    Faults are in the report. Raises `StoreUnavailable`, `CoordinationUnavailable` or `CatalogUnavailable` when a
    service does not answer: then nothing is said.
    """
    report = Report(name, stream.generation)
    if keys and (catalog is None or stream.dedup is None):
        why = "the tables are left out" if catalog is None else "the stream has no section `dedup`"
        report.notes.append(f"no keys were read: {why}")
    # The tables before the archive: whatever they hold is then in the listing. So, too, what was made of which.
    dedup = _load_dedup(catalog, stream, report) if catalog and stream.dedup is not None else None
    tables = _load(catalog, store, stream, report) if catalog else None
    chains = {*_chains(store, stream), *known}
    accepted = partial(gaps.of_topics, store, stream.generation, stream.matches)
    archive = check_archive(store, stream.generation, sorted(chains), committed, accepted, report, listener)
    if tables is not None:
        with _reachable():
            ledger = tables[0].main
            files = LedgerFiles(store, ledger, stream) if stream.sink.is_files else None
            check_rows(store, archive, *tables, report, listener, files=files, window_offsets=window_offsets)
            if dedup is not None:
                main, ranges = tables[0].main, row_ranges(archive, tables[1])
                check_unique(main, dedup, ranges, report, listener, window_offsets=window_offsets)
                if keys and report.unique_checked and stream.dedup is not None:
                    check_keys(dedup, stream.dedup, ranges, report, listener, window_offsets=window_offsets)
            if files is not None:
                root = stream.sink.root(store.prefix, names.table_name(stream.table, stream.generation))
                check_directories(store, ledger, stream, root, report)
    return report


def _load(
    catalog: Catalog, store: Store, stream: Stream, report: Report
) -> tuple[StreamTables, Progress, Offsets] | None:
    """The tables as they are now, their progress, and the quarantine's rows that retries have moved.

    None, and the reason in the report, if they cannot be checked.
    """
    name = names.table_name(stream.table, stream.generation)
    try:
        with _reachable():
            tables = load_tables(catalog, stream)
        if tables is None:
            report.notes.append("there is no table yet: the first partition run makes it")
            return None
        progress = read_progress(tables.main.metadata, name)
        return tables, progress, moved_offsets(store, report.stream, stream, tables)
    except FileNotFoundError as error:
        report.faults.append(Fault(FaultKind.UNREADABLE, name, None, None, None, first_line(error)))
    except (ProgressLost, PlanUnusable) as error:
        report.faults.append(Fault(FaultKind.PROGRESS, name, None, None, None, str(error)))
    return None


def _load_dedup(catalog: Catalog, stream: Stream, report: Report) -> DedupTables | None:
    """The tables that dedup sweeps fill, as they are now; None, and why in the report, if they cannot be checked."""
    try:
        with _reachable():
            found = load_dedup_tables(catalog, stream)
    except FileNotFoundError as error:
        name = names.unique_table_name(stream.table, stream.generation)
        report.faults.append(Fault(FaultKind.UNREADABLE, name, None, None, None, first_line(error)))
        return None
    if found is None:
        report.notes.append("there was no dedup sweep yet")
    return found


@contextmanager
def _reachable() -> Iterator[None]:
    """PyIceberg reads S3 by itself, and says `OSError` where it does not answer."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreUnavailable(f"the tables' files cannot be read: {first_line(error)}") from error


def _chains(store: Store, stream: Stream) -> list[TopicPartition]:
    """The topic-partitions that have a chain, also of topics that Kafka no longer has."""
    matching = (topic for topic in store.topics() if names.is_topic(topic) and stream.matches(topic))
    chains = (found for topic in matching for found in store.chains(topic))
    return [found.tp for found in chains if found.generation == stream.generation]
