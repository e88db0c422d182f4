"""Messages as JSON lines."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from waybill.cli.objects import messages
from waybill.records.decode import MESSAGE_SCHEMA, NO_TIMESTAMP_US


def shown(**columns: object) -> dict[str, object]:
    row = {"offset": 7, "timestamp": 0, "key": None, "value": None, "headers": [], **columns}
    stamps = pa.array([row["timestamp"]], pa.int64()).cast(MESSAGE_SCHEMA.field("timestamp").type)
    arrays = [
        stamps if field.name == "timestamp" else pa.array([row[field.name]], field.type) for field in MESSAGE_SCHEMA
    ]
    (message,) = messages(iter([pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_SCHEMA)]))
    return message


def test_a_message() -> None:
    moment = int(datetime(2013, 1, 1, 5, 0, 0, 120_000, tzinfo=UTC).timestamp() * 1_000_000)
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "b", "value": b"\xff"}]
    assert shown(timestamp=moment, key=b"k", value='{"ä": 1}'.encode(), headers=headers) == {
        "offset": 7,
        "timestamp": "2013-01-01T05:00:00.120Z",
        "key": "k",
        "value": '{"ä": 1}',
        "headers": [
            {"key": "a", "value": "1"},
            {"key": "a", "value": None},
            {"key": "b", "value": {"base64": "/w=="}},
        ],
    }


def test_null_and_empty_are_two_things() -> None:
    assert (shown()["key"], shown()["value"]) == (None, None)
    assert (shown(key=b"")["key"], shown(value=b"")["value"]) == ("", "")


def test_bytes_that_are_not_text_are_marked() -> None:
    assert shown(value=b"\x00\xfe\xff")["value"] == {"base64": "AP7/"}
    assert shown(value=b'{"base64": "AP7/"}')["value"] == '{"base64": "AP7/"}'


def test_timestamps_that_no_calendar_has() -> None:
    assert shown(timestamp=NO_TIMESTAMP_US)["timestamp"] is None
    assert shown(timestamp=2**63 - 1)["timestamp"] == (2**63 - 1) // 1000
    assert shown(timestamp=-62_135_596_800_000_001)["timestamp"] == -62_135_596_800_001
