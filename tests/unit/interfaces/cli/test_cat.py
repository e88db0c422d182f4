"""`waybill cat`: messages as JSON documents."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from waybill.interfaces.cli.objects import message_documents
from waybill.records.batches.message_rows import MESSAGE_SCHEMA, NO_TIMESTAMP_US


def document_of(**columns: object) -> dict[str, object]:
    """Return the JSON document of a message with these columns."""
    row = {"offset": 7, "timestamp": 0, "key": None, "value": None, "headers": [], **columns}
    stamps = pa.array([row["timestamp"]], pa.int64()).cast(MESSAGE_SCHEMA.field("timestamp").type)
    arrays = [
        stamps if field.name == "timestamp" else pa.array([row[field.name]], field.type) for field in MESSAGE_SCHEMA
    ]
    (document,) = message_documents(iter([pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_SCHEMA)]))
    return document


def test_message_is_printed_with_all_fields() -> None:
    moment = int(datetime(2013, 1, 1, 5, 0, 0, 120_000, tzinfo=UTC).timestamp() * 1_000_000)
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "b", "value": b"\xff"}]
    assert document_of(timestamp=moment, key=b"k", value='{"ä": 1}'.encode(), headers=headers) == {
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


def test_null_and_empty_stay_different() -> None:
    assert (document_of()["key"], document_of()["value"]) == (None, None)
    assert (document_of(key=b"")["key"], document_of(value=b"")["value"]) == ("", "")


def test_bytes_that_are_not_utf8_become_base64() -> None:
    assert document_of(value=b"\x00\xfe\xff")["value"] == {"base64": "AP7/"}
    assert document_of(value=b'{"base64": "AP7/"}')["value"] == '{"base64": "AP7/"}'


def test_timestamps_without_calendar_date_become_null_or_epoch_ms() -> None:
    assert document_of(timestamp=NO_TIMESTAMP_US)["timestamp"] is None
    assert document_of(timestamp=2**63 - 1)["timestamp"] == (2**63 - 1) // 1000
    assert document_of(timestamp=-62_135_596_800_000_001)["timestamp"] == -62_135_596_800_001
