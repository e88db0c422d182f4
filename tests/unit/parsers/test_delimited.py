from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsing import ids, parse, parser_config, reasons, slow_examples, times

from waybill.config.models import ParserConfig
from waybill.parsers import Reason
from waybill.parsers.timestamps import BadEventTime, to_microseconds


def delimited(**keys: object) -> ParserConfig:
    event_time = {"field": "at", "format": "epoch_ms"}
    base = {"name": "delimited", "columns": ["id", "text", "at"], "event_time": event_time, "message_id": "id"}
    return parser_config(**base | keys)


def test_plain_and_quoted_records_are_read_in_one_batch() -> None:
    parsed = parse(
        delimited(), b"a,,1", b'"b,""\n",x,2\r\n', b"c,\xc3\xa9,3\n", b'd,say "hi",4', b"\xc3\xa9,,5", b",,6"
    )
    assert times(parsed) == [1000, 2000, 3000, 4000, 5000, 6000]
    assert ids(parsed) == ["a", 'b,"\n', "c", "d", "é", None]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "wrong_column_count: found 1 columns where 3 are expected"),
        (b"\n", "wrong_column_count: found 1 columns where 3 are expected"),
        (b"a,b", "wrong_column_count: found 2 columns where 3 are expected"),
        (b"a,b,1,", "wrong_column_count: found 4 columns where 3 are expected"),
        (b'"a","b","1",""', "wrong_column_count: found 4 columns where 3 are expected"),
        (b"a,b,1\nc,d,2", "not_delimited: a line break outside of quotes"),
        (b'"a,b,1', "not_delimited: a quote is not closed"),
        (b'"a"x,b,1', "not_delimited: ',' expected after '\"'"),
        (b"a,\xff,1", "not_utf8: invalid start byte at byte 2"),
        (b"a,b,", "event_time_missing: field at is empty"),
        (b'a,b,""', "event_time_missing: field at is empty"),
        (b"id,text,at", "event_time_malformed: 'at' is not a number"),
    ],
)
def test_an_invalid_message_does_not_affect_others(value: bytes, reason: str) -> None:
    for others in ((b"a,b,1", b"c,d,2"), (b'"a",b,1', b"c,d,2")):
        parsed = parse(delimited(), others[0], value, others[1])
        assert parsed.error.to_pylist()[1].startswith(reason)
        assert times(parsed) == [1000, None, 2000]
        assert [ids(parsed)[0], ids(parsed)[2]] == ["a", "c"]
    assert parse(delimited(), value).error.to_pylist()[0].startswith(reason)


def test_tabs_without_quotes_are_read() -> None:
    config = delimited(delimiter="\t", quote="none")
    parsed = parse(config, b'"a\t"b"\t1', b"a,b\t\t2\n")
    assert (times(parsed), ids(parsed)) == ([1000, 2000], ['"a', "a,b"])


def test_delimiter_and_quote_can_be_characters_beyond_ascii() -> None:
    config = delimited(delimiter="·", quote="«")
    parsed = parse(config, "a·b·1".encode(), "«a··«·b·2".encode())
    assert (times(parsed), ids(parsed)) == ([1000, 2000], ["a", "a··"])


def test_a_column_name_can_contain_a_dot() -> None:
    config = parser_config(name="delimited", columns=["x", "a.b"], event_time={"field": "a.b", "format": "epoch_s"})
    assert times(parse(config, b"x,1")) == [1_000_000]


def test_a_field_of_a_megabyte_is_read() -> None:
    long = b"x" * (1 << 20)
    assert times(parse(delimited(), b'a,"%s",1' % long, b"a,%s,2" % long)) == [1000, 2000]


def test_many_columns_are_read_and_a_byte_order_mark_is_dropped() -> None:
    columns = ["at", *(f"c{n}" for n in range(700))]
    wide = parser_config(name="delimited", columns=columns, event_time={"field": "at", "format": "epoch_ms"})
    assert times(parse(wide, b"1" + b",x" * 700, b"2" + b',"x"' * 700, b"3" + b',"x"' * 699)) == [1000, 2000, None]
    marked = parse(delimited(), b'\xef\xbb\xbf"a",b,1', b'"a",b,2', b'\xef\xbb\xbfa,"b",3')
    assert (times(marked), ids(marked)) == ([1000, 2000, 3000], ["a", "a", "a"])


def test_a_single_column_is_read() -> None:
    config = parser_config(name="delimited", columns=["at"], event_time={"field": "at", "format": "epoch_ms"})
    assert times(parse(config, b'"1"', b"2\n", b'""', b"", b'"3"\r\n')) == [1000, 2000, None, None, 3000]


def test_an_empty_batch_is_parsed() -> None:
    assert times(parse(delimited())) == []


def oracle(value: bytes, delimiter: str, quote: str | None) -> tuple[int | None, str | None]:
    """One message, by Python's `csv`."""
    try:
        text = value.decode()
        quoting = csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE
        records = list(csv.reader([text], strict=True, delimiter=delimiter, quotechar=quote, quoting=quoting)) or [[]]
        assert len(records) == 1
        fields = records[0] or [""]
        if len(fields) != 3:
            return None, Reason.WRONG_COLUMN_COUNT
        return (to_microseconds(MILLIS)(fields[2]), None) if fields[2] else (None, Reason.EVENT_TIME_MISSING)
    except UnicodeDecodeError:
        return None, Reason.NOT_UTF8
    except csv.Error:
        return None, Reason.NOT_DELIMITED
    except BadEventTime as error:
        return None, str(error).partition(":")[0]


MILLIS = delimited().event_time.format


def written(fields: list[str], **options: object) -> bytes:
    text = io.StringIO()
    csv.writer(text, **options).writerow(fields)  # type: ignore[arg-type]
    return text.getvalue().encode(errors="replace")


numbers = st.integers(-99, 10**20).map(str)
right = st.tuples(st.text("ab,;\"'\r\n é", max_size=5), st.text(max_size=5), numbers).map(list)
near = st.text(st.sampled_from("a1,;\"'\n\r\té"), max_size=12).map(str.encode)


@given(
    st.lists(
        right.map(written) | right.map(lambda r: written(r, quoting=csv.QUOTE_ALL)) | near | st.binary(max_size=9)
    ),
    st.sampled_from([(",", '"'), (";", "'"), (",", None), ("\t", '"')]),
)
@slow_examples
def test_a_batch_is_read_like_each_message_alone(values: list[bytes], dialect: tuple[str, str | None]) -> None:
    parsed = parse(delimited(delimiter=dialect[0], quote=dialect[1]), *values)
    assert list(zip(times(parsed), reasons(parsed), strict=True)) == [oracle(value, *dialect) for value in values]


@given(st.lists(right, min_size=1))
@slow_examples
def test_records_of_a_csv_writer_are_read_back(records: list[list[str]]) -> None:
    parsed = parse(delimited(), *(written(record) for record in records))
    for record, identity, why in zip(records, ids(parsed), reasons(parsed), strict=True):
        assert why in (None, Reason.EVENT_TIME_OUT_OF_RANGE)
        assert why is not None or identity == (record[0] or None)
