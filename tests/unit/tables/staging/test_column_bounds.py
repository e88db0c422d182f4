"""Bounds of text and bytes in manifest entries: never below a value, at most as long as the table asks, valid UTF-8."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, NestedField, StringType

from waybill.tables.staging.column_bounds import upper_bound_of_bytes, upper_bound_of_text
from waybill.tables.staging.table_layout import TableLayout

LENGTH = 16
EDGES = st.sampled_from(["\ud7ff", "\ue000", "\U0010ffff", "\uffff", "\x00", "\x7f", "a", "é"])
TEXTS = st.lists(EDGES | st.characters(exclude_categories=["Cs"]), max_size=40).map("".join)
BYTES = st.lists(st.sampled_from([0, 0x7F, 0x80, 0xFE, 0xFF]) | st.integers(0, 255), max_size=40).map(bytes)

SCHEMA = Schema(NestedField(1, "text", StringType()), NestedField(2, "data", BinaryType()))
LAYOUT = TableLayout("t", "data", SCHEMA, UNPARTITIONED_PARTITION_SPEC, None, {})


@given(TEXTS)
@example("a" * 15 + "\ud7ff" + "zz")
@example("\U0010ffff" * 17)
@example("a" + "\U0010ffff" * 17)
def test_an_upper_bound_of_text_is_valid_and_not_below_it(value: str) -> None:
    bound = upper_bound_of_text(value, LENGTH)
    if bound is None:
        assert value[:LENGTH] == "\U0010ffff" * LENGTH
        return
    assert bound.encode() >= value.encode(), "Iceberg compares text by its UTF-8 bytes"
    assert bound >= value
    assert len(bound) <= LENGTH
    assert (bound == value) is (len(value) <= LENGTH)


@given(BYTES)
@example(b"\xff" * 17)
@example(b"\x00" + b"\xff" * 17)
def test_an_upper_bound_of_bytes_is_not_below_them(value: bytes) -> None:
    bound = upper_bound_of_bytes(value, LENGTH)
    if bound is None:
        assert value[:LENGTH] == b"\xff" * LENGTH
        return
    assert bound >= value
    assert len(bound) <= LENGTH
    assert (bound == value) is (len(value) <= LENGTH)


@pytest.mark.parametrize(
    ("value", "bound"),
    [
        ("a" * 15 + "\ud7ff" + "zz", "a" * 15 + "\ue000"),
        ("a" * 15 + "\U0010ffff" + "z", "a" * 14 + "b"),
        ("\U0010ffff" * 17, None),
        ("", ""),
        ("a" * 16, "a" * 16),
        ("a" * 17, "a" * 15 + "b"),
    ],
)
def test_bounds_of_text_are_those_of_icebergs_java_library(value: str, bound: str | None) -> None:
    assert upper_bound_of_text(value, LENGTH) == bound


@given(st.lists(TEXTS, min_size=1, max_size=5), st.lists(BYTES, min_size=1, max_size=5))
@example(["a" * 15 + "\ud7ff" + "zz"], [b"\xff" * 17])
@example(["\U0010ffff" * 17], [b""])
def test_the_manifest_entry_of_any_file_has_bounds_that_hold(texts: list[str], data: list[bytes]) -> None:
    rows = pa.table(
        {
            "text": pa.array([*texts, *[None] * len(data)], pa.string()),
            "data": pa.array([*[None] * len(texts), *data], pa.binary()),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(rows.cast(LAYOUT.arrow_schema(rows.schema)), sink)
    content = sink.getvalue()
    metadata = pq.read_metadata(pa.BufferReader(content))
    file = LAYOUT.data_file("data/1.parquet", content.size, metadata, partition=(), is_sorted=False)
    for value in texts:
        assert file.lower_bounds[1] <= value.encode()
        assert 1 not in file.upper_bounds or value.encode() <= file.upper_bounds[1]
    for each in data:
        assert file.lower_bounds[2] <= each
        assert 2 not in file.upper_bounds or each <= file.upper_bounds[2]
    for bounds in (file.lower_bounds, file.upper_bounds):
        assert len(bounds.get(1, b"").decode()) <= LENGTH
        assert len(bounds.get(2, b"")) <= LENGTH
