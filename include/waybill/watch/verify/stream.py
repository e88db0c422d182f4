"""Verify one stream: load its tables, check its chains, and compare the tables with the chains."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial

from pyiceberg.catalog import Catalog

from waybill.archive.chain import gaps
from waybill.base.errors import (
    BackfillUnderWay,
    DocumentDamaged,
    DocumentTooNew,
    PlanUnusable,
    ProgressLost,
    StoreUnavailable,
)
from waybill.config import names
from waybill.config.models import Stream
from waybill.config.names import TopicPartition
from waybill.services.store import Store
from waybill.tables.backfill.between import find_half_moved
from waybill.tables.iceberg import (
    DedupTables,
    Progress,
    StreamTables,
    is_live,
    load_dedup_tables,
    load_tables,
    read_progress,
)
from waybill.tables.quarantine.offset_sets import OffsetSet
from waybill.tables.quarantine.view import moved_offsets
from waybill.watch.verify.archive import ReadCommitted, check_archive
from waybill.watch.verify.files import SinkFiles, check_directories
from waybill.watch.verify.keys import check_keys
from waybill.watch.verify.rows import WINDOW_OFFSETS, check_rows, row_ranges
from waybill.watch.verify.shards import check_shards
from waybill.watch.verify.unique import check_unique
from waybill.watch.verify.verify_report import FaultKind, Listener, VerifyFault, VerifyReport, first_line


def verify_stream(
    name: str,
    stream: Stream,
    *,
    store: Store,
    read_committed: ReadCommitted,
    committed_tps: Collection[TopicPartition],
    catalog: Catalog | None,
    listener: Listener,
    keys: bool = False,
    window_offsets: int = WINDOW_OFFSETS,
) -> VerifyReport:
    """Read the archive of a stream's generation, and compare its tables with it if there is a `catalog`.

    With `keys`, also check that dedup has found every duplicate and nothing else.

    `read_committed` reads the committed offset of a topic-partition. `committed_tps` are the topic-partitions that have
    one: they are checked even if no object of them is left. Ingest and partition runs may go on during the check.
    Objects and rows that they add are not checked, and cause no faults.

    Faults are in the report. Raises `StoreUnavailable`, `CoordinationUnavailable` or `CatalogUnavailable` when a
    service does not answer. Then there is no result.
    """
    report = VerifyReport(name, stream.generation)
    if keys and (catalog is None or stream.dedup is None):
        why = "the tables are not checked" if catalog is None else "the stream has no section `dedup`"
        report.notes.append(f"no keys were checked: {why}")
    # Each is loaded before its source: the tables of dedup, then the main table, then the archive. So the source has
    # everything that was derived from it.
    dedup = _load_dedup_tables(catalog, stream, report) if catalog and stream.dedup is not None else None
    tables = _load_tables(catalog, store, stream, report) if catalog else None
    tps = sorted({*_list_chains(store, stream), *committed_tps})
    list_gaps = partial(gaps.list_gaps_of_topics, store, stream.generation, stream.matches)
    archive = check_archive(store, stream.generation, tps, read_committed, list_gaps, report, listener)
    check_shards(store, stream.generation, archive, report)
    if tables is not None:
        with _translate_read_errors():
            main, progress = tables[0].main, tables[1]
            files = SinkFiles(store, main, stream) if stream.sink.is_files else None
            half_moved = find_half_moved(store, name, stream, tables[0])
            if half_moved is not None:
                report.notes.append(
                    f"backfill {half_moved.backfill} is being promoted or undone, or was interrupted: quarantine rows "
                    f"of its range are checked as they were before. The same command ends it"
                )
            check_rows(
                store, archive, *tables, report, listener,
                files=files, half_moved=half_moved, window_offsets=window_offsets,
            )  # fmt: skip
            if dedup is not None and not is_live(main.metadata, stream.generation):
                report.notes.append("the tables of dedup were not compared: they follow the live generation")
            elif dedup is not None:
                ranges = row_ranges(archive, progress)
                check_unique(main, dedup, ranges, report, listener, window_offsets=window_offsets, progress=progress)
                if keys and report.unique_checked and stream.dedup is not None:
                    check_keys(dedup, stream.dedup, ranges, report, listener, window_offsets=window_offsets)
            if files is not None:
                root = stream.files_root(store.prefix)
                check_directories(store, main, stream, root, report)
    return report


def _load_tables(
    catalog: Catalog, store: Store, stream: Stream, report: VerifyReport
) -> tuple[StreamTables, Progress, OffsetSet] | None:
    """Return the tables, their progress, and the offsets of quarantine rows that retries have moved.

    Returns None, and adds the reason to the report, if the tables cannot be checked.
    """
    name = stream.table
    try:
        with _translate_read_errors():
            tables = load_tables(catalog, stream)
        if tables is None:
            report.notes.append("there is no table yet: the first partition run creates it")
            return None
        progress = read_progress(tables.main.metadata, name)
        return tables, progress, moved_offsets(store, report.stream, stream, tables)
    except FileNotFoundError as error:
        report.add_fault(VerifyFault(FaultKind.UNREADABLE, name, None, None, None, first_line(error)))
    except (BackfillUnderWay, ProgressLost, PlanUnusable, DocumentDamaged, DocumentTooNew) as error:
        report.add_fault(VerifyFault(FaultKind.PROGRESS, name, None, None, None, str(error)))
    return None


def _load_dedup_tables(catalog: Catalog, stream: Stream, report: VerifyReport) -> DedupTables | None:
    """Return the tables that dedup sweeps fill. Returns None, and adds the reason to the report, if there are none."""
    try:
        with _translate_read_errors():
            found = load_dedup_tables(catalog, stream)
    except FileNotFoundError as error:
        name = names.unique_table_name(stream.table)
        report.add_fault(VerifyFault(FaultKind.UNREADABLE, name, None, None, None, first_line(error)))
        return None
    if found is None:
        report.notes.append("there was no dedup sweep yet")
    return found


@contextmanager
def _translate_read_errors() -> Iterator[None]:
    """Raise `StoreUnavailable` instead of PyIceberg's `OSError` for an S3 that does not answer.

    `FileNotFoundError` passes: a missing file is a fault of the table.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreUnavailable(f"the tables' files cannot be read: {first_line(error)}") from error


def _list_chains(store: Store, stream: Stream) -> list[TopicPartition]:
    """Return the topic-partitions that have a chain, including those of topics that were deleted from Kafka."""
    matching = (topic for topic in store.topics() if names.is_topic(topic) and stream.matches(topic))
    chains = (found for topic in matching for found in store.chains(topic))
    return [found.tp for found in chains if found.generation == stream.generation]
