from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.config.models import EventTimeFormat
from waybill.parsers.timestamps import MAX_MICROSECONDS, MIN_MICROSECONDS, BadEventTime, convert_times, to_microseconds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ISO, SECONDS, MILLIS, MICROS, NANOS = EventTimeFormat


def microseconds(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def converted(values: list[Any], written: EventTimeFormat) -> tuple[list[int | None], list[tuple[int, str]]]:
    times, errors = convert_times(values, written)
    assert times.type == pa.timestamp("us", tz="UTC")
    return times.cast(pa.int64()).to_pylist(), errors


def each(values: list[Any], written: EventTimeFormat) -> list[int | None]:
    """What the definition, value by value, makes of it."""
    read = to_microseconds(written)
    found: list[int | None] = []
    for value in values:
        try:
            found.append(read(value))
        except BadEventTime:
            found.append(None)
    return found


offsets = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.lists(st.datetimes(timezones=st.one_of(st.just(UTC), offsets)), min_size=1))
def test_iso_8601_with_a_zone_equals_datetime(times: list[datetime]) -> None:
    found, errors = converted([time.isoformat() for time in times], ISO)
    in_range = [MIN_MICROSECONDS <= microseconds(time) <= MAX_MICROSECONDS for time in times]
    assert found == [microseconds(t) if ok else None for t, ok in zip(times, in_range, strict=True)]
    assert [index for index, _ in errors] == [i for i, ok in enumerate(in_range) if not ok]
    assert all(why.startswith("event_time_out_of_range: ") for _, why in errors)


@given(st.lists(st.datetimes(), min_size=1), st.sampled_from(["T", " "]))
def test_iso_8601_without_a_zone_is_utc(times: list[datetime], separator: str) -> None:
    found, errors = converted([time.isoformat(separator) for time in times], ISO)
    assert found == [microseconds(time.replace(tzinfo=UTC)) for time in times]
    assert not errors


# Texts near the canonical form: what Arrow's cast takes must be what the definition takes, with the same result.
near_iso = st.from_regex(
    r"\A[0-9]{4}-[0-3][0-9]-[0-3][0-9][T ][0-2][0-9]:[0-6][0-9]:[0-6][0-9](\.[0-9]{1,9})?"
    r"(Z|z|[+-][0-2][0-9]:[0-9]{2})?\Z"
)


@given(st.lists(near_iso, min_size=1, max_size=3))
def test_batch_and_single_conversion_agree_on_iso_8601(texts: list[str]) -> None:
    assert converted(texts, ISO)[0] == each(texts, ISO)


@given(
    st.lists(st.integers(-(2**63), 2**64 - 1) | st.integers(-(10**10), 10**10), min_size=1),
    st.sampled_from([SECONDS, MILLIS, MICROS, NANOS]),
)
def test_batch_and_single_conversion_agree_on_epochs(numbers: list[int], written: EventTimeFormat) -> None:
    assert converted(numbers, written)[0] == each(numbers, written)


@given(st.integers(MIN_MICROSECONDS, MAX_MICROSECONDS))
def test_epochs_as_number_and_as_string_are_the_same_time(time_us: int) -> None:
    for written, unit in ((SECONDS, 10**6), (MILLIS, 1000), (MICROS, 1)):
        whole = time_us // unit
        assert converted([whole], written)[0] == converted([str(whole)], written)[0] == [whole * unit]
    assert converted([time_us * 1000 + 999], NANOS)[0] == converted([str(time_us * 1000 + 999)], NANOS)[0] == [time_us]


@given(st.floats(min_value=-6e10, max_value=2.5e11))
def test_fractions_of_a_second_are_exact(seconds: float) -> None:
    text = repr(seconds)
    wanted = Fraction(text) * 10**6 // 1
    assert converted([json.loads(text)], SECONDS)[0] == converted([text], SECONDS)[0] == [wanted]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2013-01-01", "2013-01-01T00:00:00+00:00"),
        ("20130101T050015Z", "2013-01-01T05:00:15+00:00"),
        ("2013-W01-2T05:00", "2013-01-01T05:00:00+00:00"),
        ("2013-01-01t05:00:00z", "2013-01-01T05:00:00+00:00"),
        ("2013-01-01T05:00:00,5-0500", "2013-01-01T10:00:00.500000+00:00"),
        ("2013-01-01T05:00:00.123456789Z", "2013-01-01T05:00:00.123456+00:00"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+00:00"),
        ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999+00:00"),
    ],
)
def test_other_forms_of_iso_8601_are_read(text: str, wanted: str) -> None:
    # Beside a canonical one, so that the batch takes the slow way, and alone.
    assert converted([text, "2013-01-01T00:00:00Z"], ISO)[0][0] == microseconds(datetime.fromisoformat(wanted))
    assert converted([text], ISO)[0] == [microseconds(datetime.fromisoformat(wanted))]


@pytest.mark.parametrize(
    ("value", "written", "reason"),
    [
        ("yesterday", ISO, "event_time_malformed: 'yesterday' is not an ISO 8601 date and time"),
        ("", ISO, "event_time_malformed"),
        ("2013-02-30T00:00:00Z", ISO, "event_time_malformed"),
        ("2013-01-01T24:00:00Z", ISO, "event_time_malformed"),
        ("2013-01-01T23:59:60Z", ISO, "event_time_malformed"),
        ("2013-01-01-05:00", ISO, "event_time_malformed"),
        ("0000-01-01T00:00:00Z", ISO, "event_time_malformed"),
        (" 2013-01-01T00:00:00Z", ISO, "event_time_malformed"),
        ("0001-01-01T00:00:00+14:00", ISO, "event_time_out_of_range"),
        ("9999-12-31T23:59:59-01:00", ISO, "event_time_out_of_range"),
        (1357016400, ISO, "event_time_wrong_type: found a number where a string (ISO 8601) is expected"),
        ("x" * 1000, ISO, "event_time_malformed: '" + "x" * 98 + "…"),
        ("2013-01-01T00:00:00Z", SECONDS, "event_time_malformed: '2013-01-01T00:00:00Z' is not a number"),
        ("", MILLIS, "event_time_malformed"),
        ("1_000", MILLIS, "event_time_malformed"),
        ("0x10", MILLIS, "event_time_malformed"),
        ("NaN", SECONDS, "event_time_malformed"),
        ("Infinity", SECONDS, "event_time_malformed"),
        ("9" * 101, SECONDS, "event_time_malformed"),
        (True, SECONDS, "event_time_wrong_type: found a boolean"),
        ({}, SECONDS, "event_time_wrong_type: found an object"),
        ([1], MILLIS, "event_time_wrong_type: found an array"),
        (1357016400000, SECONDS, "event_time_out_of_range: 1357016400000 is not between the years 1 and 9999"),
        (2**64 - 1, MILLIS, "event_time_out_of_range"),
        (1e300, SECONDS, "event_time_out_of_range"),
        ("1e999", NANOS, "event_time_out_of_range"),
    ],
)
def test_an_invalid_event_time_gets_a_reason_and_does_not_affect_others(
    value: Any, written: EventTimeFormat, reason: str
) -> None:
    good = "2013-01-01T00:00:00Z" if written is ISO else 0
    times, errors = converted([good, value, good], written)
    assert times[1] is None
    assert times[0] == times[2] == (microseconds(datetime(2013, 1, 1, tzinfo=UTC)) if written is ISO else 0)
    assert len(errors) == 1
    assert errors[0][0] == 1
    assert errors[0][1].startswith(reason)


def test_a_tiny_number_is_the_epoch() -> None:
    assert converted(["1e-400", 5e-324], SECONDS)[0] == [0, 0]


def test_an_empty_batch_has_no_times() -> None:
    assert converted([], ISO) == ([], [])
    assert converted([], MILLIS) == ([], [])


@pytest.mark.parametrize("offset", ["+00:80", "-01:60", "+0080", "+00:00:99"])
def test_an_offset_of_more_than_59_minutes_is_no_time(offset: str) -> None:
    texts = [f"2026-01-01T00:00:00{offset}", f"2026-01-01 00:00:00.5{offset}"]
    for values in (texts, pa.array(texts)):
        times, errors = convert_times(values, EventTimeFormat.ISO8601)
        assert times.null_count == 2
        assert [text.partition(":")[0] for _, text in errors] == ["event_time_malformed"] * 2
