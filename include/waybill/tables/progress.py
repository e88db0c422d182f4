"""Progress: up to which offset each chain has been turned into rows.

It is a property of the snapshot that added the rows, so that both are there or neither is (`waybill.tables.state`). A
table that is rolled back goes back to the progress of that time, and the rows in between come again from the archive.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata

from waybill.errors import ProgressLost
from waybill.names import TopicPartition
from waybill.tables.state import LEFT_OUT_PROPERTY, PROGRESS_PROPERTY, newest_property, newest_with

__all__ = ["LeftOut", "Progress", "left_out_text", "progress_text", "read_left_out", "read_progress"]

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
