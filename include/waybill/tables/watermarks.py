"""Watermarks: the newest Kafka timestamp that each topic-partition's rows have come to.

They say how far the stream's time has come, and so when an hour will get no more rows but late ones. They are a
property of the snapshot that moves the progress, which counts all that came before as well: the newest snapshot that
has it says it all.

A watermark says nothing about correctness. Under Kafka's `CreateTime` it is what producers claim.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyiceberg.table.metadata import TableMetadata

from waybill.documents import read_document
from waybill.names import TopicPartition
from waybill.tables.state import WATERMARKS_PROPERTY, newest_property

__all__ = ["Watermarks", "merge_watermarks", "read_watermarks", "watermarks_text"]

_VERSION = 1

Watermarks = Mapping[TopicPartition, int]
"""Epoch milliseconds. A topic-partition is missing as long as none of its messages had a Kafka timestamp."""


def read_watermarks(metadata: TableMetadata, name: str) -> Watermarks:
    """The watermarks that the history of a table, called `name` in errors, records; empty if it has none.

    Raises `GenerationConflict` for a document of a newer Waybill.
    """
    text = newest_property(metadata, WATERMARKS_PROPERTY)
    return {} if text is None else _parse(text, f"{WATERMARKS_PROPERTY} of table {name}")


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
    merged = merge_watermarks(read_watermarks(metadata, name), _parse(own, WATERMARKS_PROPERTY))
    return {**properties, WATERMARKS_PROPERTY: watermarks_text(merged)}


def _parse(text: str, where: str) -> Watermarks:
    document = read_document(text.encode(), _VERSION, where)
    return {TopicPartition.parse(tp): int(at) for tp, at in document["newest"].items()}
