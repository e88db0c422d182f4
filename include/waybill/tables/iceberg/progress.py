"""Progress and watermarks: the archived offsets that a table has, as properties of its snapshots.

Progress is the offset of each topic-partition up to which the chain has been turned into rows. A snapshot that adds
rows also records the new progress, so rows and progress are committed together or not at all
(`waybill.tables.iceberg.state`). A table that is rolled back returns to its earlier progress, and the next partition
run reads the same offsets from the archive again.

A watermark is the newest Kafka timestamp among the rows of a topic-partition. The watermarks show when an hour will
get no more rows except late ones. Each snapshot that moves the progress records the watermarks of the whole history,
so the newest snapshot with the property is enough to read them. Correctness never depends on watermarks: with Kafka's
`CreateTime`, producers choose them freely.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata

from waybill.base.documents import Document
from waybill.base.errors import DocumentTooNew, ProgressLost
from waybill.config.names import TopicPartition, offsets_of_json, offsets_to_json
from waybill.tables.iceberg.state import (
    BLOCKED_PARTITIONS_PROPERTY,
    PROGRESS_PROPERTY,
    WATERMARKS_PROPERTY,
    newest_properties_with,
    newest_property,
)

_PROGRESS = Document(
    f"table {{where}}: the snapshot property {PROGRESS_PROPERTY} cannot be parsed ({{kind}}: {{error}}): another "
    f"program wrote it. Roll back to a snapshot before it, or raise the stream's generation",
    name=f"{PROGRESS_PROPERTY} of table {{where}}",
    error=ProgressLost,
)
_BLOCKED = Document(name=BLOCKED_PARTITIONS_PROPERTY)
_WATERMARKS = Document()

Progress = Mapping[TopicPartition, int]
"""The next offset of each topic-partition. A topic-partition without any partitioned offset is missing."""

Watermarks = Mapping[TopicPartition, int]
"""Epoch milliseconds. A topic-partition is missing until one of its messages has a Kafka timestamp."""


@dataclass(frozen=True, slots=True)
class BlockedPartitions:
    """The topic-partitions that the last commit left out because of archive faults.

    The next plan reads this to avoid reading the same damaged objects again. Losing it does no harm: the next
    partition run then finds the faults by itself.
    """

    offsets: Progress
    """The offset at which an archive fault blocks each topic-partition."""
    attempt: int
    """How many commits in a row did not advance the progress. It is part of the next plan's name, which must be new."""


def read_progress(metadata: TableMetadata, name: str) -> Progress:
    """Return the progress that the table's history records; empty for a table without rows.

    Raises `ProgressLost` when the table, called `name` in errors, holds rows and no snapshot records progress, or when
    the document has a newer version than this code reads.
    """
    text = newest_property(metadata, PROGRESS_PROPERTY)
    if text is not None:
        return _PROGRESS.parse(name, text, lambda fields: offsets_of_json(fields["offsets"]))
    current = metadata.current_snapshot()
    if current is None or (current.summary and current.summary.additional_properties.get("total-records") == "0"):
        return {}
    raise ProgressLost(
        f"table {name} holds rows, but no snapshot in its history has the property {PROGRESS_PROPERTY}: another "
        f"program wrote the table, or the snapshots that had it were expired. Roll back to a snapshot that has it, or "
        f"raise the stream's generation"
    )


def progress_text(progress: Progress) -> str:
    """Return the JSON document that `read_progress` reads."""
    return _PROGRESS.write({"offsets": offsets_to_json(progress)}).decode()


def read_blocked_partitions(metadata: TableMetadata) -> BlockedPartitions:
    """Return the topic-partitions that were blocked when the table's newest progress was committed."""
    text = (newest_properties_with(metadata, PROGRESS_PROPERTY) or {}).get(BLOCKED_PARTITIONS_PROPERTY)
    if text is None:
        return BlockedPartitions({}, 0)
    try:
        document = _BLOCKED.read(text, "")
    except DocumentTooNew:  # harmless: the next partition run finds the archive faults again
        return BlockedPartitions({}, 0)
    return BlockedPartitions(offsets_of_json(document["offsets"]), document["attempt"])


def blocked_partitions_text(blocked: BlockedPartitions) -> str:
    """Return the JSON document that `read_blocked_partitions` reads."""
    return _BLOCKED.write({"offsets": offsets_to_json(blocked.offsets), "attempt": blocked.attempt}).decode()


def read_watermarks(metadata: TableMetadata, name: str) -> Watermarks:
    """Return the watermarks that the history of a table, called `name` in errors, records; empty if it has none.

    Raises `DocumentTooNew` for a document of a newer version of Waybill.
    """
    text = newest_property(metadata, WATERMARKS_PROPERTY)
    return {} if text is None else parse_watermarks(text, f"{WATERMARKS_PROPERTY} of table {name}")


def watermarks_text(watermarks: Watermarks) -> str:
    """Return the JSON document that `read_watermarks` reads."""
    return _WATERMARKS.write({"newest": offsets_to_json(watermarks)}).decode()


def merge_watermarks(first: Watermarks, second: Watermarks) -> Watermarks:
    """Return the newer watermark of each topic-partition."""
    return {tp: max(w[tp] for w in (first, second) if tp in w) for tp in {**first, **second}}


def with_watermarks(properties: Mapping[str, str], metadata: TableMetadata, name: str) -> dict[str, str]:
    """Return a new snapshot's properties with its watermarks, if it has any, merged with those of the table's history.

    Raises `DocumentTooNew` as `read_watermarks` does.
    """
    own = properties.get(WATERMARKS_PROPERTY)
    if own is None:
        return dict(properties)
    merged = merge_watermarks(read_watermarks(metadata, name), parse_watermarks(own))
    return {**properties, WATERMARKS_PROPERTY: watermarks_text(merged)}


def parse_watermarks(text: str, where: str = WATERMARKS_PROPERTY) -> Watermarks:
    """Return the watermarks of the snapshot property `text`; `where` names it in errors. Raises `DocumentTooNew`."""
    return offsets_of_json(_WATERMARKS.read(text.encode(), where)["newest"])
