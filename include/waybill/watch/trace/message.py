"""Trace one message: by topic-partition and offset, or by its message id.

A trace lists the chain at the offset (one request), reads the object up to the message's record batch, and scans the
tables with conditions by which Iceberg leaves out most files. It reads, and changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from waybill.archive.chain.chain import ChainObject, walk_chain
from waybill.archive.chain.gaps import Gap, list_gaps_of_chain
from waybill.archive.chain.span import Span
from waybill.archive.chain.spans import read_span
from waybill.base.errors import ChainBroken, CorruptBatch, IndexDamaged
from waybill.config.models import Config, Stream
from waybill.config.names import TopicPartition
from waybill.records.batches.limits import Limits
from waybill.services.store import Store
from waybill.tables.iceberg import load_dedup_tables, load_tables, read_progress, translate_storage_errors
from waybill.tables.staging.services import StagingServices, services_of

if TYPE_CHECKING:
    from pyiceberg.table import Table

logger = logging.getLogger(__name__)

MAX_FOUND = 10
"""The most messages with one message id, and the most duplicates of one message, that are returned."""

Place = tuple[TopicPartition, int]
"""A topic-partition and an offset."""
TraceServices = StagingServices


@dataclass(frozen=True, slots=True)
class Traced:
    """The trace of one message."""

    stream: str
    tp: TopicPartition
    offset: int
    object: ChainObject | None = None
    """The backup object whose range has the offset; None: none has."""
    gap: Gap | None = None
    """The accepted gap that the offset is in."""
    message: Mapping[str, Any] | None = None
    """The archived message: timestamp, key, value, headers. None: the object has no message at the offset."""
    table: str = ""
    """The table that has its row: the main one or the quarantine; '' if none has."""
    is_quarantined: bool = False
    row: Mapping[str, Any] | None = None
    progress: int | None = None
    """The offset up to which the tables have the topic-partition; None: there is no table yet."""
    has_dedup: bool = False
    is_unique: bool = False
    first: Place | None = None
    """The message that this one repeats."""
    duplicates: tuple[Place, ...] = ()
    """Messages that repeat this one, at most `MAX_FOUND`."""
    faults: tuple[str, ...] = field(default=())
    """What could not be read, and why."""


@contextmanager
def open_services(config: Config) -> Iterator[StagingServices]:
    """Open the archive and the catalog. One can serve many traces."""
    with services_of(config, None) as services:
        yield services


def trace_message(services: StagingServices, config: Config, name: str, tp: TopicPartition, offset: int) -> Traced:
    """Return the trace of the message of stream `name` at an offset.

    Raises `ConfigError` for an unknown stream, or one of the retriable `StoreUnavailable` and `CatalogUnavailable`.
    """
    stream = config.stream(name)
    found: dict[str, Any] = {}
    try:
        _find_in_archive(services.store, stream, tp, offset, found)
    except (ChainBroken, CorruptBatch) as error:
        found["faults"] = (str(error),)
    _find_in_tables(services, stream, tp, offset, found)
    return Traced(name, tp, offset, **found)


def find_places(services: StagingServices, config: Config, name: str, message_id: str) -> list[Place]:
    """Return where the messages with a message id are, at most `MAX_FOUND`: first those that dedup kept.

    If the message id is the dedup key, the key index shows where the kept row is, and only the duplicates of that row
    are searched. Otherwise, and for ids older than the window of the index, the tables are scanned.

    Raises as `trace_message` does.
    """
    stream = config.stream(name)
    if stream.dedup is not None and stream.dedup.key == ("message_id",):
        found = _find_by_key_index(services, config, name, message_id)
        if found:
            return found
    tables = load_tables(services.catalog, stream)
    if tables is None:
        return []
    dedup = load_dedup_tables(services.catalog, stream) if stream.dedup is not None else None
    searched = [tables.main] if dedup is None else [dedup.unique, dedup.duplicates]
    places: list[Place] = []
    for table in searched:
        for row in _scan(table, {"message_id": message_id}, ("topic", "partition", "offset")):
            place = TopicPartition(row["topic"], row["partition"]), row["offset"]
            if place not in places:
                places.append(place)
    return places[:MAX_FOUND]


def _find_by_key_index(services: StagingServices, config: Config, name: str, message_id: str) -> list[Place]:
    """Return the kept row with a message id, and the rows that repeat it; nothing if the key index lacks the id."""
    from waybill.tables.dedup.key_lookup import find_kept_row

    try:
        kept = find_kept_row(config, name, [message_id], services)
    except IndexDamaged as error:
        logger.warning("%s: the tables are scanned instead of the key index: %s", name, error)
        return []
    dedup = load_dedup_tables(services.catalog, config.stream(name))
    if kept is None or dedup is None:
        return []
    tp, offset = kept
    place: dict[str, str | int] = {"topic": tp.topic, "partition": tp.partition, "offset": offset}
    if not any(row["message_id"] == message_id for row in _scan(dedup.unique, place, ("message_id",))):
        return []  # another key with the same hash, or the row was replaced since then
    of_first = {f"first_{column}": value for column, value in place.items()}
    repeats = _scan(dedup.duplicates, of_first, ("topic", "partition", "offset"))
    found = [kept, *((TopicPartition(row["topic"], row["partition"]), row["offset"]) for row in repeats)]
    return found[:MAX_FOUND]


# --- the archive ------------------------------------------------------------------------------------------------------


def _find_in_archive(store: Store, stream: Stream, tp: TopicPartition, offset: int, found: dict[str, Any]) -> None:
    gaps = list_gaps_of_chain(store, stream.generation, tp)
    found["gap"] = next((gap for gap in gaps if gap.first_offset <= offset < gap.next_offset), None)
    held = next(walk_chain(store, stream.generation, tp, from_offset=offset), None)
    if held is None or not held.name.first_offset <= offset < held.next_offset:
        return
    found["object"] = held
    found["message"] = _read(store, stream, held, tp, offset)


def read_message(store: Store, stream: Stream, tp: TopicPartition, offset: int) -> dict[str, Any] | None:
    """Return the archived message at an offset; None if there is none.

    Raises `ChainBroken`, `CorruptBatch` or `StoreUnavailable`.
    """
    held = next(walk_chain(store, stream.generation, tp, from_offset=offset), None)
    return None if held is None else _read(store, stream, held, tp, offset)


def _read(store: Store, stream: Stream, held: ChainObject, tp: TopicPartition, offset: int) -> dict[str, Any] | None:
    """Return the message at an offset of an object. The object is read up to the record batch with the offset.

    A message beyond the stream's limits has no value and no headers; its field `set_aside` holds the reason.
    """
    span = Span(tp, held.key, offset, offset + 1, held.size_bytes)
    limits = Limits(*stream.message_limits.both)
    for batch in read_span(store, span, in_part=True, limits=limits):
        for row in batch.to_pylist():
            return dict(row)
    return None


# --- the tables -------------------------------------------------------------------------------------------------------


def _find_in_tables(
    services: StagingServices, stream: Stream, tp: TopicPartition, offset: int, found: dict[str, Any]
) -> None:
    tables = load_tables(services.catalog, stream)
    if tables is None:
        return
    found["progress"] = read_progress(tables.main.metadata, ".".join(tables.main.name())).get(tp)
    wanted: dict[str, str | int] = {"topic": tp.topic, "partition": tp.partition, "offset": offset}
    for table, is_quarantined in ((tables.main, False), (tables.quarantine, True)):
        row = next(iter(_scan(table, wanted)), None)
        if row is not None:
            found |= {"table": ".".join(table.name()), "row": row, "is_quarantined": is_quarantined}
            break
    found["has_dedup"] = stream.dedup is not None
    dedup = load_dedup_tables(services.catalog, stream) if stream.dedup is not None else None
    if dedup is None:
        return
    repeated = next(iter(_scan(dedup.duplicates, wanted)), None)
    if repeated is not None:
        first = TopicPartition(repeated["first_topic"], repeated["first_partition"])
        found["first"] = (first, repeated["first_offset"])
        return
    found["is_unique"] = next(iter(_scan(dedup.unique, wanted, ("offset",))), None) is not None
    of_first = {f"first_{name}": value for name, value in wanted.items()}
    found["duplicates"] = tuple(
        (TopicPartition(row["topic"], row["partition"]), row["offset"])
        for row in _scan(dedup.duplicates, of_first, ("topic", "partition", "offset"))
    )


def _scan(table: Table, wanted: Mapping[str, str | int], columns: tuple[str, ...] = ("*",)) -> Iterator[dict[str, Any]]:
    """Yield rows whose columns have the wanted values, at most `MAX_FOUND`."""
    from pyiceberg.expressions import And, BooleanExpression, EqualTo

    current = table.metadata.current_snapshot()
    if current is None:
        return
    condition: BooleanExpression | None = None
    for name, value in wanted.items():
        each = EqualTo(term=name, value=value)
        condition = each if condition is None else And(condition, each)
    assert condition is not None
    with translate_storage_errors(f"read table {'.'.join(table.name())}"):
        scan = table.scan(condition, columns, snapshot_id=current.snapshot_id, limit=MAX_FOUND)
        yield from scan.to_arrow().to_pylist()
