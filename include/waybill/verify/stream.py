"""One stream: its tables as they are now, then its chains, then the ones against the others."""

from __future__ import annotations

from collections.abc import Collection

from pyiceberg.catalog import Catalog

from waybill import names
from waybill.config import Stream
from waybill.names import TopicPartition
from waybill.store import Store
from waybill.tables import load_tables, read_progress
from waybill.verify.archive import ReadCommitted, check_archive
from waybill.verify.report import Listener, Report
from waybill.verify.rows import WINDOW_OFFSETS, check_rows

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
    window_offsets: int = WINDOW_OFFSETS,
) -> Report:
    """Read the archive of a stream's generation, and hold its tables against it if there is a `catalog`.

    `committed` reads the committed offset of a topic-partition, now; `known` are the topic-partitions that have one,
    which are looked at even if they have no object left. Ingest and partition may go on meanwhile: what they add is
    not looked at, and confuses nothing.

    Faults are in the report. Raises `StoreUnavailable`, `CoordinationUnavailable` or `CatalogUnavailable` when a
    service does not answer: then nothing is said.
    """
    report = Report(name, stream.generation)
    # The tables before the archive: whatever they hold is then in the listing.
    tables = load_tables(catalog, stream) if catalog else None
    chains = {*_chains(store, stream), *known}
    archive = check_archive(store, stream.generation, sorted(chains), committed, report, listener)
    if tables is not None:
        progress = read_progress(tables.main.metadata, ".".join(tables.main.name()))
        check_rows(store, archive, tables, progress, report, listener, window_offsets=window_offsets)
    elif catalog is not None:
        report.notes.append("there is no table yet: the first partition run makes it")
    return report


def _chains(store: Store, stream: Stream) -> list[TopicPartition]:
    """The topic-partitions that have a chain, also of topics that Kafka no longer has."""
    matching = (topic for topic in store.topics() if names.is_topic(topic) and stream.matches(topic))
    chains = (found for topic in matching for found in store.chains(topic))
    return [found.tp for found in chains if found.generation == stream.generation]
