"""The comparison of a window before and after, against dictionaries."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from waybill.config.names import TopicPartition
from waybill.tables.backfill.compare import Comparison, WindowRows, compare
from waybill.tables.backfill.ranges import OffsetRanges

A, B = TopicPartition("a", 0), TopicPartition("b", 3)
WINDOW = OffsetRanges({A: (10, 20), B: (0, 5)})
PLACE = [
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("kafka_timestamp", pa.timestamp("us", tz="UTC")),
]
TABLE = pa.schema([*PLACE, pa.field("speed", pa.float64()), pa.field("name", pa.string())])
QUARANTINE = pa.schema([*PLACE, pa.field("reason", pa.string()), pa.field("parser", pa.string())])

Key = tuple[TopicPartition, int]
KEYS = st.one_of(st.tuples(st.just(A), st.integers(5, 25)), st.tuples(st.just(B), st.integers(0, 8)))
VALUES = st.tuples(st.sampled_from([None, 1.0, 2.5, math.nan]), st.sampled_from([None, "x", "y"]))
TABLES = st.dictionaries(KEYS, VALUES, max_size=20)
REASONS = st.dictionaries(KEYS, st.tuples(st.sampled_from(["r", "s"]), st.just("json")), max_size=10)

NAMES = ("offset", "change", "column", "before", "after")


def rows(schema: pa.Schema, found: dict[Key, tuple[Any, ...]], batch: int = 7) -> WindowRows:
    document = [
        dict(zip(schema.names, (tp.topic, tp.partition, offset, offset * 3_600_000_000, *values), strict=True))
        for (tp, offset), values in found.items()
    ]
    table = pa.Table.from_pylist(document, schema=schema)
    return WindowRows(WINDOW, table.to_batches(max_chunksize=batch), schema)


def text(value: Any) -> str | None:
    return None if value is None else pa.array([value]).cast(pa.string())[0].as_py()


@given(TABLES, TABLES, REASONS, REASONS)
def test_comparison_agrees_with_dictionaries(
    old: dict[Key, Any], new: dict[Key, Any], old_reasons: dict[Key, Any], new_reasons: dict[Key, Any]
) -> None:
    old_reasons = {key: value for key, value in old_reasons.items() if key not in old}
    new_reasons = {key: value for key, value in new_reasons.items() if key not in new}
    found = Comparison()
    batches = compare(
        (rows(TABLE, old), rows(QUARANTINE, old_reasons)),
        (rows(TABLE, new), rows(QUARANTINE, new_reasons)),
        ("speed", "name"),
        found,
    )
    differences = [
        (TopicPartition(row["topic"], row["partition"]), *(row[name] for name in NAMES))
        for batch in batches
        for row in batch.to_pylist()
    ]
    expected, unchanged, messages = [], 0, Counter[str]()
    keys = [(tp, offset) for tp, (first, end) in WINDOW for offset in range(first, end)]
    for key in keys:
        was, is_now = (old, old_reasons), (new, new_reasons)
        before = "row" if key in was[0] else "quarantine" if key in was[1] else "nowhere"
        after = "row" if key in is_now[0] else "quarantine" if key in is_now[1] else "nowhere"
        if before == after == "nowhere":
            continue
        if before == after:
            side = 0 if before == "row" else 1
            names = ("speed", "name") if side == 0 else ("reason", "parser")
            kind = "changed" if side == 0 else "other_reason"
            changed = [
                (*key, kind, name, text(one), text(other))
                for name, one, other in zip(names, was[side][key], is_now[side][key], strict=True)
                if text(one) != text(other)
            ]
            expected += changed
            unchanged += not changed
            messages[kind] += bool(changed)
            continue
        kind = {
            ("nowhere", "row"): "added",
            ("row", "nowhere"): "removed",
            ("row", "quarantine"): "enters_quarantine",
            ("quarantine", "row"): "leaves_quarantine",
            ("nowhere", "quarantine"): "added_to_quarantine",
            ("quarantine", "nowhere"): "removed_from_quarantine",
        }[before, after]
        messages[kind] += 1
        old_reason = old_reasons[key][0] if before == "quarantine" else None
        new_reason = new_reasons[key][0] if after == "quarantine" else None
        column = "reason" if old_reason or new_reason else None
        expected.append((*key, kind, column, old_reason, new_reason))
    assert sorted(differences, key=str) == sorted(expected, key=str)
    assert found.unchanged == unchanged
    assert {kind: n for kind, n in found.messages.items() if n} == {kind: n for kind, n in messages.items() if n}
    assert sum((sum(counts.values()) for counts in found.hours.values()), 0) == sum(messages.values())


def test_figures_of_several_windows_add_up_and_survive_a_document() -> None:
    total = Comparison()
    for _ in range(3):
        found = Comparison()
        sides = (rows(TABLE, {(A, 11): (1.0, "x")}), rows(QUARANTINE, {}))
        other = (rows(TABLE, {(A, 11): (2.0, "x")}), rows(QUARANTINE, {(B, 1): ("bad", "json")}))
        assert len(list(compare(sides, other, ("speed", "name"), found))) == 2
        total.add(Comparison.parse(found.document()))
    assert total.document() == {
        "unchanged": 0,
        "messages": {"added_to_quarantine": 3, "changed": 3},
        "columns": {"speed": 3},
        "examples": {
            "added_to_quarantine": ["b/3@1: null → bad"] * 3,
            "speed": ["a/0@11: 1 → 2"] * 3,
        },
        "hours": {
            "1970-01-01T01:00Z": {"added_to_quarantine": 3},
            "1970-01-01T11:00Z": {"changed": 3},
        },
    }
