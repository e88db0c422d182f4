"""The values of a row on the page Trace, whatever type their column has."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from waybill.interfaces.web.trace import value_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (7, "7"),
        (Decimal("1.50"), "1.50"),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC), "2026-01-02T03:04:05.678+00:00"),
        ("straße", "straße"),
        (b"key", "key"),
        (b"\xff\x00", "ff 00"),
        (
            [{"key": "source", "value": b"caf\xc3\xa9"}, {"key": "source", "value": None}],
            '[{"key": "source", "value": "café"}, {"key": "source", "value": null}]',
        ),
        (
            {"at": datetime(2026, 1, 2, tzinfo=UTC), "price": Decimal("2.10"), "tags": ["a"]},
            '{"at": "2026-01-02T00:00:00.000+00:00", "price": "2.10", "tags": ["a"]}',
        ),
    ],
)
def test_value_of_a_column_is_shown_as_text_and_nested_ones_as_json(value: object, text: str) -> None:
    assert value_text(value) == text


def test_long_value_is_cut() -> None:
    assert len(value_text(["x" * 10_000])) < 5_000
