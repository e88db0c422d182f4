"""The groups of a quarantine, and the examples that stand for them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa

from waybill.tables.quarantine.row_filter import RowFilter
from waybill.tables.quarantine.view import QuarantineExample, QuarantinePlace, summarize

AT = datetime(2026, 1, 1, tzinfo=UTC)


class Rows:
    """A view of batches: each row is partition, offset and reason."""

    def __init__(self, *batches: list[tuple[int, int, str]]) -> None:
        self.batches = batches

    def rows(self, *_: object) -> Iterator[pa.RecordBatch]:
        for batch in self.batches:
            rows = [
                {
                    "topic": "t",
                    "partition": partition,
                    "offset": offset,
                    "reason": reason,
                    "parser": "json",
                    "quarantined_at": AT,
                }
                for partition, offset, reason in batch
            ]
            yield pa.RecordBatch.from_pylist(rows)


def examples(*batches: list[tuple[int, int, str]]) -> tuple[QuarantineExample, ...]:
    [group] = summarize(Rows(*batches), RowFilter.parse())  # type: ignore[arg-type]
    return group.examples


def test_examples_show_different_texts_of_a_reason_first() -> None:
    found = examples(
        [(0, 1, "not_json: a"), (0, 2, "not_json: a"), (0, 3, "not_json: a")],
        [(1, 7, "not_json: a"), (1, 9, "not_json: b")],
        [(0, 12, "not_json: c")],
    )
    assert {each.reason for each in found} == {"not_json: a", "not_json: b", "not_json: c"}
    assert len(found) == 3
    assert QuarantineExample(QuarantinePlace(1, 9), "not_json: b") in found


def test_one_message_is_one_example() -> None:
    assert examples([(0, 4, "not_json: a")]) == (QuarantineExample(QuarantinePlace(0, 4), "not_json: a"),)


def test_messages_with_the_same_text_are_examples_too() -> None:
    assert len(examples([(0, offset, "null_value") for offset in range(9)])) == 2
