"""Scenes of streams with the sink `files`: their objects, markers and inventory, and checks of their messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

import pyarrow.parquet as pq
from partition_scenes import Message, Scene, event, messages_in

from waybill.archive.formats.sequencefile import read_messages
from waybill.archive.formats.text import read_values
from waybill.config.names import FileExtension, FileName, TopicPartition, period_of_key
from waybill.records.batches.encode import Record
from waybill.services.store import Store
from waybill.tables.iceberg import read_progress
from waybill.tables.iceberg.file_inventory import InventoryEntry, read_inventory
from waybill.tables.partition.files_sink.finalize import FinalizeReport, finalize
from waybill.tables.partition.files_sink.hour_state import LogEnds

HOUR_MS = 3_600_000
START_MS = 473_184 * HOUR_MS
"""2023-12-25T00:00:00Z, when the scenes begin."""


def at(hours: float) -> datetime:
    """Return a time, given in hours since the scenes begin."""
    return datetime.fromtimestamp((START_MS + hours * HOUR_MS) / 1000, UTC)


def moment(offset: int, hours: float, sent_hours: float | None = None) -> Record:
    """Return an event of that time, sent then or later."""
    sent = hours if sent_hours is None else sent_hours
    return event(offset, int(START_MS + hours * HOUR_MS), timestamp_ms=int(START_MS + sent * HOUR_MS))


def root(scene: Scene) -> str:
    return scene.config.files_root("flights")


def objects(scene: Scene) -> dict[str, tuple[str, dict[str, str]]]:
    """Return ETag and metadata of every object of the sink, by key below the root."""
    prefix = f"{root(scene)}/"
    keys = [found.key for found in scene.store.list_objects(prefix)]
    described = {key: scene.store.describe(key) for key in keys}
    return {key.removeprefix(prefix): (found.etag, found.metadata) for key, found in described.items()}


def data_keys(scene: Scene) -> list[str]:
    return [key for key in objects(scene) if not key.endswith("/_SUCCESS")]


def markers(scene: Scene) -> set[str]:
    """Return the hours that have a marker."""
    return {key.removesuffix("/_SUCCESS") for key in objects(scene) if key.endswith("/_SUCCESS")}


def inventory(scene: Scene) -> list[InventoryEntry]:
    return read_inventory(scene.table)


def key_of(entry: InventoryEntry) -> str:
    return entry.path.split("/", 3)[3]


def file_messages(scene: Scene) -> list[Message]:
    """Return the messages in the Parquet files that the inventory lists."""
    found: list[Message] = []
    for entry in inventory(scene):
        rows = pq.read_table(BytesIO(scene.store.read(key_of(entry))))
        assert rows.num_rows == entry.rows
        period = period_of_key(root(scene), key_of(entry))
        assert period is not None
        assert all(period.start <= time < period.end for time in rows.column("event_time").to_pylist())
        assert rows.column("offset").to_pylist() == sorted(rows.column("offset").to_pylist())
        found += messages_in(rows)
    return found


def check_files_exactly_once(scene: Scene) -> None:
    """Assert that each message below the progress is in a file or in quarantine exactly once, as it was sent."""
    progress = read_progress(scene.table.metadata, "t")
    sent = [m for m in scene.sent if m[2] < progress.get(TopicPartition(m[0], m[1]), 0)]
    found = [*file_messages(scene), *messages_in(scene.quarantine.scan().to_arrow())]
    assert sorted(found, key=lambda m: m[:3]) == sorted(sent, key=lambda m: m[:3])


def values_of(store: Store, entry: InventoryEntry) -> list[bytes]:
    """Return the values in a file of any format, in order."""
    name = key_of(entry)
    extension = FileExtension(name.rsplit("/", 1)[-1].split(".", 1)[1])
    data = BytesIO(store.read(name))
    if extension is FileExtension.PARQUET:
        return pq.read_table(data).column("value").to_pylist()
    if extension is FileExtension.SEQUENCEFILE:
        return [value for batch in read_messages(data, name) for value in batch.column("value").to_pylist()]
    compressed = extension is FileExtension.TEXT_GZIP
    return [value for values in read_values(data, name, b"\n", compressed=compressed) for value in values.to_pylist()]


def check_values_exactly_once(scene: Scene) -> None:
    """Assert that files and quarantine hold the sent values, each as often: for formats that hold only values."""
    found = Counter(value or b"" for entry in inventory(scene) for value in values_of(scene.store, entry))
    found += Counter(m[-1] or b"" for m in messages_in(scene.quarantine.scan().to_arrow()))
    assert found == Counter(m[-1] or b"" for m in scene.sent)


def finalize_at(
    scene: Scene, hours: float, ends: Mapping[TopicPartition, int] | None = None, **options: Any
) -> FinalizeReport:
    """Run a finalizer at that time with these log ends; without any, Kafka does not answer."""
    ends = ends or {}
    empty = frozenset(tp for tp, end in ends.items() if not end)
    log_ends = LogEnds(at(hours), ends, empty, problem="" if ends else "no server answers")
    return finalize(scene.config, "flights", now=lambda: at(hours), fetch=lambda *_: log_ends, **options)


def names_in(scene: Scene) -> list[FileName]:
    return [FileName.parse(root(scene), f"{root(scene)}/{key}") for key in data_keys(scene)]
