"""Progress: up to which offset each chain has been turned into rows.

It is a property of the snapshot that added the rows, so that both are there or neither is (`waybill.tables.state`). A
table that is rolled back goes back to the progress of that time, and the rows in between come again from the archive.

Watermarks: the newest Kafka timestamp that each topic-partition's rows have come to.

They say how far the stream's time has come, and so when an hour will get no more rows but late ones. They are a
property of the snapshot that moves the progress, which counts all that came before as well: the newest snapshot that
has it says it all.

A watermark says nothing about correctness. Under Kafka's `CreateTime` it is what producers claim.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata

from waybill.documents import read_document
from waybill.errors import ProgressLost
from waybill.names import TopicPartition
from waybill.tables.state import LEFT_OUT_PROPERTY, PROGRESS_PROPERTY, WATERMARKS_PROPERTY, newest_property, newest_with

__all__ = [
    "LeftOut",
    "Progress",
    "Watermarks",
    "left_out_text",
    "merge_watermarks",
    "progress_text",
    "read_left_out",
    "read_progress",
    "read_watermarks",
    "watermarks_text",
]

_VERSION = 1

Progress = Mapping[TopicPartition, int]
"""The next offset of each topic-partition; one that is not in it has not been started."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What the last commit left out, since the archive could not give it. It spares the next plan the same discovery.

    Nothing is lost when nobody remembers it.
    """

    offsets: Progress
    """Where the fault of each topic-partition is."""
    attempt: int
    """How many commits in a row have moved no progress: so the next plan does not have the last one's name."""


def read_progress(metadata: TableMetadata, name: str) -> Progress:
    """The progress that a table's history records; empty for a table without rows.

    Raises `ProgressLost` when the table holds rows and no snapshot says up to which offsets, or one says it in a
    version of the document that is newer than this code.
    """
    text = newest_property(metadata, PROGRESS_PROPERTY)
    if text is not None:
        return _parse(text, name)
    current = metadata.current_snapshot()
    if current is None or (current.summary and current.summary.additional_properties.get("total-records") == "0"):
        return {}
    raise ProgressLost(
        f"table {name} holds rows, but no snapshot in its history has the property {PROGRESS_PROPERTY}: it was written "
        f"by somebody else, or the snapshots that had it were expired. Roll back to a snapshot that has it, or raise "
        f"the stream's generation"
    )


def read_left_out(metadata: TableMetadata) -> LeftOut:
    """What the commit that made a table's progress left out."""
    text = (newest_with(metadata, PROGRESS_PROPERTY) or {}).get(LEFT_OUT_PROPERTY)
    if text is None:
        return LeftOut({}, 0)
    document = json.loads(text)
    if document.get("v") != _VERSION:  # of no weight: what is left out is found again
        return LeftOut({}, 0)
    return LeftOut({TopicPartition.parse(tp): int(o) for tp, o in document["offsets"].items()}, document["attempt"])


def left_out_text(left_out: LeftOut) -> str:
    """The document that `read_left_out` reads."""
    offsets = {str(tp): offset for tp, offset in sorted(left_out.offsets.items())}
    return json.dumps({"v": _VERSION, "offsets": offsets, "attempt": left_out.attempt}, separators=(",", ":"))


def progress_text(progress: Progress) -> str:
    """The document that `read_progress` reads."""
    offsets = {str(tp): offset for tp, offset in sorted(progress.items())}
    return json.dumps({"v": _VERSION, "offsets": offsets}, separators=(",", ":"))


def _parse(text: str, name: str) -> Progress:
    document = json.loads(text)
    if document.get("v") != _VERSION:
        raise ProgressLost(
            f"table {name} has progress in version {document.get('v')!r}; this Waybill reads version {_VERSION}: "
            f"a newer one wrote it, use that"
        )
    return {TopicPartition.parse(tp): int(offset) for tp, offset in document["offsets"].items()}


Watermarks = Mapping[TopicPartition, int]
"""Epoch milliseconds. A topic-partition is missing as long as none of its messages had a Kafka timestamp."""


def read_watermarks(metadata: TableMetadata, name: str) -> Watermarks:
    """The watermarks that the history of a table, called `name` in errors, records; empty if it has none.

    Raises `GenerationConflict` for a document of a newer Waybill.
    """
    text = newest_property(metadata, WATERMARKS_PROPERTY)
    return {} if text is None else _parse_watermarks(text, f"{WATERMARKS_PROPERTY} of table {name}")


def watermarks_text(watermarks: Watermarks) -> str:
    """The document that `read_watermarks` reads."""
    newest = {str(tp): at for tp, at in sorted(watermarks.items())}
    return json.dumps({"v": _VERSION, "newest": newest}, separators=(",", ":"))


def merge_watermarks(first: Watermarks, second: Watermarks) -> Watermarks:
    """For each topic-partition the newer of the two."""
    return {tp: max(w[tp] for w in (first, second) if tp in w) for tp in {**first, **second}}


def with_watermarks(properties: Mapping[str, str], metadata: TableMetadata, name: str) -> dict[str, str]:
    """The properties of a new snapshot: its own watermarks, if it brings any, become those of the whole history.

    Raises `GenerationConflict` as `read_watermarks` does.
    """
    own = properties.get(WATERMARKS_PROPERTY)
    if own is None:
        return dict(properties)
    merged = merge_watermarks(read_watermarks(metadata, name), _parse_watermarks(own, WATERMARKS_PROPERTY))
    return {**properties, WATERMARKS_PROPERTY: watermarks_text(merged)}


def _parse_watermarks(text: str, where: str) -> Watermarks:
    document = read_document(text.encode(), _VERSION, where)
    return {TopicPartition.parse(tp): int(at) for tp, at in document["newest"].items()}
