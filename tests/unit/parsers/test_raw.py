from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from parsing import ids, parse, parser_config, reasons, times

from waybill.parsers import Reason
from waybill.parsers.timestamps import MAX_MICROSECONDS, MIN_MICROSECONDS
from waybill.records.batches.message_rows import NO_TIMESTAMP_US

RAW = parser_config(name="raw")


def test_the_event_time_is_kafkas_timestamp_whatever_the_value() -> None:
    parsed = parse(RAW, b"", b"\xff\x00", b'{"at": 1}', timestamps_us=[0, 1_000, MAX_MICROSECONDS])
    assert times(parsed) == [0, 1_000, MAX_MICROSECONDS]
    assert ids(parsed) == [None] * 3


def test_a_message_without_a_usable_timestamp_goes_to_quarantine() -> None:
    parsed = parse(RAW, b"a", b"b", b"c", timestamps_us=[NO_TIMESTAMP_US, MAX_MICROSECONDS + 1, 7])
    assert parsed.error.to_pylist() == [
        "kafka_timestamp_missing: the message has no Kafka timestamp",
        "event_time_out_of_range: the Kafka timestamp is not between the years 1 and 9999",
        None,
    ]


@given(st.lists(st.tuples(st.binary(max_size=9), st.integers(-(2**63), 2**63 - 1) | st.just(NO_TIMESTAMP_US))))
def test_every_message_has_a_time_or_a_reason(messages: list[tuple[bytes, int]]) -> None:
    parsed = parse(RAW, *(value for value, _ in messages), timestamps_us=[stamp for _, stamp in messages])
    for (_, stamp), time, why in zip(messages, times(parsed), reasons(parsed), strict=True):
        if stamp == NO_TIMESTAMP_US:
            assert why == Reason.KAFKA_TIMESTAMP_MISSING
        elif MIN_MICROSECONDS <= stamp <= MAX_MICROSECONDS:
            assert time == stamp
        else:
            assert why == Reason.EVENT_TIME_OUT_OF_RANGE
