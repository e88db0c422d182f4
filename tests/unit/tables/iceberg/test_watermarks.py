"""Watermarks of a commit are merged with those of the table's history."""

from __future__ import annotations

import pytest
from pyiceberg.table.metadata import TableMetadata
from table_history import history

from waybill.base.errors import DocumentTooNew
from waybill.config.names import TopicPartition
from waybill.tables.iceberg.progress import merge_watermarks, read_watermarks, watermarks_text, with_watermarks

A, B, C = (TopicPartition("t", n) for n in range(3))


def table(*texts: str | None) -> TableMetadata:
    return history(*({} if text is None else {"waybill.watermarks": text} for text in texts))


def test_watermarks_are_read_from_the_newest_snapshot_that_has_them() -> None:
    assert read_watermarks(table(watermarks_text({A: 1}), watermarks_text({A: 2, B: 3}), None), "t") == {A: 2, B: 3}
    assert read_watermarks(table(None), "t") == {}


def test_commit_writes_the_newer_watermark_of_each_topic_partition() -> None:
    metadata = table(watermarks_text({A: 5, B: 7}))
    own = {"waybill.watermarks": watermarks_text({A: 4, C: 1}), "other": "x"}
    assert with_watermarks(own, metadata, "t") == {
        "waybill.watermarks": watermarks_text({A: 5, B: 7, C: 1}),
        "other": "x",
    }
    assert with_watermarks({"other": "x"}, metadata, "t") == {"other": "x"}
    assert merge_watermarks({}, {}) == {}


def test_watermarks_of_a_newer_version_are_refused_by_name() -> None:
    with pytest.raises(DocumentTooNew, match=r"waybill.watermarks of table a.b was written by a newer Waybill"):
        read_watermarks(table('{"v":2}'), "a.b")
