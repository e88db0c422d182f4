from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsing import ids, parse, parser_config, reasons, slow_examples, times

from waybill.config.models import EventTimeFormat, ParserConfig
from waybill.parsers import Parsed, Reason
from waybill.parsers.timestamps import BadEventTime, to_microseconds

PATTERN = r"at=(?P<at>[^ ]*)(?: id=(?P<id>[^ ]*))?"


def regex(**keys: object) -> ParserConfig:
    event_time = {"field": "at", "format": "epoch_ms"}
    return parser_config(**{"name": "regex", "pattern": PATTERN, "event_time": event_time, "message_id": "id"} | keys)


def test_groups_of_the_first_match_are_the_fields() -> None:
    parsed = parse(regex(), b"x at=1 id=a y", b"at=2 at=3", "é at=4 id=ü".encode(), b"at=5 id=")
    assert times(parsed) == [1000, 2000, 4000, 5000]
    assert ids(parsed) == ["a", None, "ü", None]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "pattern_not_found: the pattern is found nowhere in the message"),
        (b"\xffat=1", "not_utf8: invalid start byte at byte 0"),
        (b"at=1 \xed\xa0\x80", "not_utf8: invalid continuation byte at byte 5"),
        (b"at= id=a", "event_time_missing: field at is empty"),
        (b"at=soon", "event_time_malformed: 'soon' is not a number"),
        (b"at=99999999999999999999", "event_time_out_of_range: "),
    ],
)
def test_an_invalid_message_does_not_affect_others(value: bytes, reason: str) -> None:
    parsed = parse(regex(), b"at=1 id=a", value, b"at=2 id=b")
    assert parsed.error.to_pylist()[1].startswith(reason)
    assert times(parsed) == [1000, None, 2000]
    assert [ids(parsed)[0], ids(parsed)[2]] == ["a", "b"]
    assert times(parse(regex(), value)) == [None]


def test_iso_8601_times_without_message_ids_are_read() -> None:
    config = regex(event_time={"field": "at"}, message_id=None)
    parsed = parse(config, b"at=1970-01-01T00:00:01Z id=a", b"at=1970-01-01T01:00:00+01:00")
    assert (times(parsed), ids(parsed)) == ([1_000_000, 0], [None, None])


def test_line_breaks_and_nul_are_plain_text() -> None:
    assert times(parse(regex(), b"a\0\r\nat=1 \n")) == [1000]
    assert times(parse(regex(pattern="^(?P<at>[0-9]+)\n?$", message_id=None), b"7\n", b"7\n8")) == [7000, None]


def test_an_empty_batch_is_parsed() -> None:
    assert times(parse(regex())) == []


def oracle(value: bytes, written: EventTimeFormat) -> tuple[int | None, str | None]:
    """One message, by Python's own `re`."""
    try:
        match = re.search(PATTERN, value.decode())
    except UnicodeDecodeError:
        return None, Reason.NOT_UTF8
    if match is None:
        return None, Reason.PATTERN_NOT_FOUND
    if not match["at"]:
        return None, Reason.EVENT_TIME_MISSING
    try:
        return to_microseconds(written)(match["at"]), None
    except BadEventTime as error:
        return None, str(error).partition(":")[0]


# A number as RE2 and Arrow are given it: mostly of the fast form, with signs, zeros, fractions, and too many digits.
numbers = st.from_regex(r"\A-?[0-9]{1,22}(\.[0-9]{1,3})?(e[0-9])?\Z") | st.integers().map(str)
near = st.builds(lambda at, rest: f"at={at}{rest}".encode(errors="replace"), numbers | st.text(), st.text())
messages = st.lists(near | st.binary(max_size=20) | st.just(b"at=1 id=a"), max_size=6)


def found(parsed: Parsed) -> list[tuple[int | None, str | None]]:
    return list(zip(times(parsed), reasons(parsed), strict=True))


@given(messages, st.sampled_from(EventTimeFormat))
@slow_examples
def test_a_batch_is_read_like_each_message_alone(values: list[bytes], written: EventTimeFormat) -> None:
    config = regex(event_time={"field": "at", "format": written.value})
    parsed = parse(config, *values)
    assert found(parsed) == [oracle(value, written) for value in values]
    alone = [parse(config, value) for value in values]
    assert parsed.error.to_pylist() == [one.error.to_pylist()[0] for one in alone]
