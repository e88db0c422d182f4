"""Parsing of GetRecords' answers: what is cut short or lacks a field is refused, and unknown fields are left out."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.services.kinesis.answers import ParsedRecords, RawRecord, UnreadableAnswer, parse_records

RECORD = {
    "SequenceNumber": "49680510334066078125161334800747181671462721233197465602",
    "ApproximateArrivalTimestamp": 1795492204.759,
    "Data": base64.b64encode(b"data").decode(),
    "PartitionKey": "key",
    "EncryptionType": "KMS",
}
ANSWER = {"Records": [RECORD], "NextShardIterator": "next", "MillisBehindLatest": 12, "ChildShards": None}


def body(**changes: Any) -> bytes:
    return json.dumps({**ANSWER, **changes}).encode()


def test_an_answer_is_parsed() -> None:
    record = RawRecord(int(str(RECORD["SequenceNumber"])), 1795492204759, "key", b"data", "KMS")
    assert parse_records(body()) == ParsedRecords([record], "next", 12)


def test_unknown_fields_are_left_out() -> None:
    assert parse_records(body(Future=[1], Records=[{**RECORD, "Future": {}}])) == parse_records(body())


def test_optional_fields_may_be_missing() -> None:
    bare = {"SequenceNumber": "7", "Data": ""}
    parsed = parse_records(body(Records=[bare], NextShardIterator=None))
    assert parsed == ParsedRecords([RawRecord(7, -1, None, b"", "NONE")], None, 12)


@pytest.mark.parametrize("field", ["Records", "MillisBehindLatest"])
def test_an_answer_without_a_field_is_refused(field: str) -> None:
    document = {name: value for name, value in ANSWER.items() if name != field}
    with pytest.raises(UnreadableAnswer, match=field):
        parse_records(json.dumps(document).encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"Records": None},
        {"Records": [None]},
        {"Records": [{**RECORD, "Data": "####"}]},
        {"Records": [{**RECORD, "Data": "YQ"}]},
        {"Records": [{**RECORD, "Data": None}]},
        {"Records": [{**RECORD, "SequenceNumber": "x"}]},
        {"MillisBehindLatest": "soon"},
        {"NextShardIterator": ""},
        {"NextShardIterator": 5},
    ],
)
def test_a_field_of_another_kind_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnreadableAnswer):
        parse_records(body(**changes))


def test_an_answer_that_is_cut_anywhere_is_refused() -> None:
    whole = body()
    for size in range(len(whole)):
        with pytest.raises(UnreadableAnswer):
            parse_records(whole[:size])


@given(st.binary(max_size=200))
def test_no_bytes_raise_another_error(garbage: bytes) -> None:
    with pytest.raises(UnreadableAnswer):
        parse_records(garbage)


@pytest.mark.parametrize("arrival", ["1E90", "-1e30", "1e16"])
def test_an_arrival_time_that_no_batch_can_hold_makes_the_answer_unreadable(arrival: str) -> None:
    record = f'{{"ApproximateArrivalTimestamp":{arrival},"Data":"","SequenceNumber":"0"}}'
    with pytest.raises(UnreadableAnswer, match="is no time"):
        parse_records(f'{{"MillisBehindLatest":0,"Records":[{record}]}}'.encode())
