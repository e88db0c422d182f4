"""The messages of each hour against those of earlier weeks, over weeks of watches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.config.models import Config, Stream
from waybill.config.models.promises import time_zone
from waybill.watch.incidents.finding import Finding, Verdict
from waybill.watch.promises.volumes import HourlyVolumes, Volumes, volume_finding

HOUR_MS = 3_600_000
WEEK = 168
FIRST = 490_000
"""An hour, counted since 1970."""


def stream(**promise: object) -> Stream:
    document = {
        "version": 1,
        "storage": {"bucket": "bucket"},
        "streams": {
            "flights": {
                "topics": ["flights"],
                "parser": {"event_time": {"field": "at"}},
                "table": "t.flights",
                "promises": {"volume": promise},
            }
        },
    }
    return Config.model_validate(document).stream("flights")


def watched(messages: Mapping[int, int], hours: int, late: Callable[[int], bool] = lambda _: False) -> Volumes:
    """Return what watches, one at the start of each hour, know of a log that got so many messages in each hour."""
    volumes, end = Volumes(), 0
    for hour in range(hours + 1):
        minute = 30 if late(hour) else 1
        volumes = volumes.noted((FIRST + hour) * HOUR_MS + minute * 60_000, {"flights": (end, 1)})
        volumes = Volumes.parse(volumes.content())
        end += messages.get(hour, 0)
    return volumes


def finding(volumes: Volumes, hours: int, **promise: object) -> Finding:
    return volume_finding("flights", stream(**promise), volumes, (FIRST + hours) * HOUR_MS + 60_000)


WEEKS = 4 * WEEK + 10


def steady(**other: int) -> dict[int, int]:
    """2,000 messages in each hour of four weeks and ten hours; `last`: in the last one."""
    return dict.fromkeys(range(WEEKS), 2000) | {WEEKS - 1: other.get("last", 2000)}


@pytest.mark.parametrize(
    ("last", "verdict", "figure"),
    [
        (2000, Verdict.KEPT, "2,000 messages in an hour, 100% of usual"),
        (1000, Verdict.KEPT, "1,000 messages in an hour, 50% of usual"),
        (999, Verdict.BROKEN, "999 messages in an hour, 49.95% of usual"),
        (0, Verdict.BROKEN, "0 messages in an hour, 0% of usual"),
        (10_000, Verdict.KEPT, "10,000 messages in an hour, 500% of usual"),
        (10_001, Verdict.BROKEN, "10,001 messages in an hour, 500.05% of usual"),
    ],
)
def test_an_hour_is_compared_with_the_same_hour_of_four_weeks(last: int, verdict: Verdict, figure: str) -> None:
    found = finding(watched(steady(last=last), WEEKS), WEEKS)
    assert (found.verdict, found.figure, found.limit) == (verdict, figure, "50% to 500% of usual")
    if verdict is Verdict.BROKEN:
        assert found.detail == "usually 2,000: the median of this hour in 4 earlier weeks"
        assert found.since_ms == (FIRST + WEEKS - 1) * HOUR_MS


def test_a_quiet_night_is_usual_if_it_was_quiet_in_earlier_weeks() -> None:
    nights = {hour: 20 if hour % 24 < 6 else 5000 for hour in range(WEEKS)}
    for hours in range(WEEKS - 24, WEEKS):
        assert finding(watched(nights, hours), hours).verdict is Verdict.KEPT


def test_small_hours_and_short_histories_break_no_promise() -> None:
    small = dict.fromkeys(range(WEEKS - 1), 900)
    assert finding(watched(small, WEEKS), WEEKS).figure == "too little to compare"
    assert finding(watched(small, WEEKS), WEEKS, min_messages=900).verdict is Verdict.BROKEN
    young = dict.fromkeys(range(WEEK + 3), 2000)
    assert finding(watched(young, WEEK + 4), WEEK + 4).figure == "too little to compare"
    assert finding(watched(young, WEEK + 4), WEEK + 4, min_weeks=1).verdict is Verdict.BROKEN
    assert finding(Volumes(), WEEKS).verdict is Verdict.KEPT


def test_an_hour_without_a_watch_in_time_is_unknown_and_changes_nothing() -> None:
    volumes = watched(steady(last=0), WEEKS, late=lambda hour: hour == WEEKS - 1)
    assert finding(volumes, WEEKS).verdict is Verdict.UNKNOWN
    later = watched(steady(last=0), WEEKS, late=lambda hour: hour % WEEK == (WEEKS - 1) % WEEK and hour < WEEK)
    assert finding(later, WEEKS).detail == "usually 2,000: the median of this hour in 3 earlier weeks"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 500), st.booleans()), max_size=60))
def test_known_hours_have_the_messages_that_were_written(steps: list[tuple[int, int, bool]]) -> None:
    """Watches with hours between them, late watches, and a topic that is created again."""
    volumes, hour, end = Volumes(), FIRST, 0
    written: dict[int, int | None] = {}
    noted: int | None = None
    for skipped, messages, again in steps:
        hour += 1 + skipped
        if again:
            end = 0
        is_late = messages % 7 == 0
        volumes = volumes.noted(hour * HOUR_MS + (6 if is_late else 5) * 60_000, {"flights": (end, 1)})
        assert volumes.noted(hour * HOUR_MS + 59 * 60_000, {"flights": (end + 999, 1)}) is volumes
        if not is_late and noted is not None and skipped == 0 and end >= noted:
            written[hour - 1] = end - noted
        noted = None if is_late else end
        end += messages
    assert volumes.streams.get("flights", HourlyVolumes(0, 0)).messages == written


def test_hours_in_which_the_number_of_topic_partitions_changed_are_unknown() -> None:
    """The leader of one did not answer, and then did: its whole log is not the messages of an hour."""
    volumes = Volumes()
    for hour, sums in enumerate([(100, 2), (50, 1), (160, 2), (165, 2)]):
        volumes = volumes.noted((FIRST + hour) * HOUR_MS, {"flights": sums})
    assert volumes.streams["flights"].messages == {FIRST + 2: 5}


def test_hours_of_more_than_five_weeks_ago_are_dropped() -> None:
    volumes = watched(dict.fromkeys(range(6 * WEEK), 5), 6 * WEEK)
    assert len(volumes.streams["flights"].messages) == 5 * WEEK - 1


def test_a_damaged_document_begins_again() -> None:
    assert Volumes.parse(b"no gzip") == Volumes()


def test_contradictory_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="is more than at_most"):
        stream(at_least="200%", at_most="100%")


@pytest.mark.parametrize(
    ("zone", "changed"), [("Europe/Berlin", (2027, 3, 28)), ("America/New_York", (2027, 11, 7)), ("UTC", (2027, 3, 28))]
)
def test_a_local_peak_is_compared_with_itself_in_the_weeks_after_clocks_change(
    zone: str, changed: tuple[int, int, int]
) -> None:
    """Traffic peaks at 09:00 local time: with UTC hours, the peak of this week met the hour beside last week's."""
    local_zone = time_zone(zone)
    change = datetime(*changed, 12, tzinfo=UTC)
    first, last = (int(each.timestamp()) // 3600 for each in (change - timedelta(weeks=5), change + timedelta(weeks=2)))
    messages = {}
    for hour in range(first, last):
        local = datetime.fromtimestamp(hour * 3600, local_zone)
        messages[hour] = 100_000 if local.hour == 9 else 2_000
    for hour in range(last - 13 * 24, last):
        known = {each: count for each, count in messages.items() if each > hour - 35 * 24}
        volumes = Volumes({"flights": HourlyVolumes(hour + 1, 0, 1, known)})
        found = volume_finding("flights", stream(time_zone=zone), volumes, (hour + 1) * HOUR_MS + 60_000)
        assert found.verdict is Verdict.KEPT, (datetime.fromtimestamp(hour * 3600, local_zone), found)


def test_an_hour_that_clocks_skipped_is_not_compared() -> None:
    zone = time_zone("Europe/Berlin")
    week_after = int(datetime(2027, 4, 4, 2, tzinfo=zone).timestamp()) // 3600
    known = dict.fromkeys(range(week_after - 36 * 24, week_after), 1)
    # 02:00 does not exist on 28 March: three weeks are left of four.
    assert len(HourlyVolumes(week_after, 0, 1, known).same_hours(week_after, zone)) == 3


def test_too_little_to_compare_prints_no_limit_that_does_not_apply() -> None:
    found = finding(watched(steady(), 100), 100)
    assert (found.figure, found.limit) == ("too little to compare", "none before 2 weeks are known; so far 0")
    few = dict.fromkeys(range(WEEKS), 5)
    assert finding(watched(few, WEEKS), WEEKS).limit == "none below 1,000 messages in an hour; usual are 5"
