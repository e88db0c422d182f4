from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsing import slow_examples

from waybill.config.models import JsonParser
from waybill.parsers import Parsed, Reason, build_parser
from waybill.records.batches.message_rows import MESSAGE_SCHEMA


def parser_config(**fields: object) -> JsonParser:
    return JsonParser.model_validate({"event_time": {"field": "at", "format": "epoch_ms"}, "message_id": "id"} | fields)


def parse(*values: bytes, config: JsonParser | None = None) -> Parsed:
    batch = pa.RecordBatch.from_pylist(
        [{"offset": n, "timestamp": 0, "key": None, "value": v, "headers": []} for n, v in enumerate(values)],
        schema=MESSAGE_SCHEMA,
    )
    parsed = build_parser(config or parser_config()).parse(batch)
    assert all(len(array) == len(values) for array in parsed[:3])
    for time, error in zip(parsed.event_time, parsed.error, strict=True):
        assert time.is_valid != error.is_valid
    return parsed


def times(parsed: Parsed) -> list[int | None]:
    return parsed.event_time.cast(pa.int64()).to_pylist()


def reasons(parsed: Parsed) -> list[str | None]:
    return [None if error is None else error.partition(":")[0] for error in parsed.error.to_pylist()]


def test_valid_messages_are_parsed() -> None:
    parsed = parse(b'{"at": 1, "id": "a"}', b' {"id":"b","at":2000}\n')
    assert times(parsed) == [1000, 2_000_000]
    assert parsed.message_id.to_pylist() == ["a", "b"]
    assert parsed.error.null_count == 2


def test_invalid_messages_do_not_affect_others() -> None:
    parsed = parse(
        b'{"at": 1, "id": "a"}',
        b"no json",
        b'{"at": 2, "id": "b"}',
        b'{"at": "soon", "id": "c"}',
        b'{"at": 3, "id": {}}',
        b'{"at": 4, "id": "d"}',
    )
    assert times(parsed) == [1000, None, 2000, None, None, 4000]
    assert [parsed.message_id.to_pylist()[n] for n in (0, 2, 5)] == ["a", "b", "d"]
    assert reasons(parsed) == [
        None,
        Reason.NOT_JSON,
        None,
        Reason.EVENT_TIME_MALFORMED,
        Reason.MESSAGE_ID_WRONG_TYPE,
        None,
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not_json: "),
        (b"\xff\xfe", "not_json: "),
        (b'{"at": 1, "x": "\xff"}', "not_json: "),
        (b'\xef\xbb\xbf{"at": 1}', "not_json: "),
        (b'{"at": NaN}', "not_json: "),
        (b'{"at": 1, "x": "\\ud800"}', "not_json: "),
        (b'{"at": 1} {"at": 2}', "not_json: "),
        (b'{"at": 1', "not_json: "),
        (b"[" * 100_000, "not_json: "),
        (b'{"at": 1, "x": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", "not_json: "),
        (b"[1]", "not_an_object: found an array"),
        (b"null", "not_an_object: found null"),
        (b'"text"', "not_an_object: found a string"),
        (b"{}", "event_time_missing: field at is missing"),
        (b'{"at": null}', "event_time_missing: field at is null"),
        (b'{"at": []}', "event_time_wrong_type: found an array"),
        (b'{"at": 1e400}', "not_json: "),
        (b'{"at": 1, "id": true}', "message_id_wrong_type: field id is a boolean"),
        (b'{"at": 1, "id": ["a"]}', "message_id_wrong_type: field id is an array"),
    ],
)
def test_an_invalid_message_goes_to_quarantine_with_a_reason(value: bytes, reason: str) -> None:
    (error,) = parse(value).error.to_pylist()
    assert error.startswith(reason)
    assert len(error) < 300


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('"a"', "a"),
        ('"é\\u00e9"', "éé"),
        ("0", "0"),
        ("-7", "-7"),
        ("18446744073709551615", "18446744073709551615"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),  # orjson alone makes it 1.2e+29
        ("1.50", "1.50"),
        ("1e3", "1e3"),
        ('""', None),
        ("null", None),
    ],
)
def test_a_message_id_is_the_text_of_its_field(text: str, wanted: str | None) -> None:
    assert parse(b'{"at": 1, "id": %s}' % text.encode()).message_id.to_pylist() == [wanted]


def test_a_message_without_an_id_has_a_null_id() -> None:
    assert parse(b'{"at": 1}').message_id.to_pylist() == [None]
    assert parse(b'{"at": 1, "id": "a"}', config=parser_config(message_id=None)).message_id.to_pylist() == [None]


def test_field_paths_lead_through_objects_only() -> None:
    config = parser_config(event_time={"field": "a.b.c", "format": "epoch_ms"}, message_id=["x.y"])
    parsed = parse(
        b'{"a": {"b": {"c": 1}}, "x.y": "id"}',
        b'{"a": {"b": [{"c": 1}]}}',
        b'{"a": {"b": null}}',
        b'{"a": {"b": {"c": 2}}, "x": {"y": "other"}}',
        config=config,
    )
    assert times(parsed) == [1000, None, None, 2000]
    assert parsed.message_id.to_pylist()[0] == "id"
    assert parsed.message_id.to_pylist()[3] is None
    assert reasons(parsed)[1:3] == [Reason.EVENT_TIME_MISSING, Reason.EVENT_TIME_MISSING]


def test_the_last_value_of_a_repeated_key_counts() -> None:
    parsed = parse(b'{"at": 1, "id": "a", "at": 2, "id": "b"}')
    assert (times(parsed), parsed.message_id.to_pylist()) == ([2000], ["b"])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["at", "id", "x"]), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.binary(max_size=40) | json_values.map(lambda v: json.dumps(v).encode(errors="replace")), max_size=5))
@slow_examples
def test_no_message_makes_the_parser_raise(values: list[bytes]) -> None:
    together = parse(*values)
    alone = [parse(value) for value in values]
    assert times(together) == [times(one)[0] for one in alone]
    assert reasons(together) == [reasons(one)[0] for one in alone]
