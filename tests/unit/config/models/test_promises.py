"""Promises and alerts in the config: short forms, limits, deadlines, routes, and what is refused."""

# ruff: noqa: E501 - the messages stay searchable

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from waybill.base.errors import ConfigError
from waybill.config.models import Config, load_config
from waybill.config.models.alerts import QuietHours
from waybill.config.models.promises import Deadline, PromiseSeverity

VALID = """\
version: 1
storage: {bucket: archive}
alerts: {}
streams:
  flights:
    topics: [flights]
    parser: {name: json, event_time: {field: at, format: epoch_ms}}
    table: analytics.flights
    promises: {}
"""


def load(tmp_path: Path, promises: str = "{}", alerts: str = "{}") -> Config:
    path = tmp_path / "streams.yaml"
    path.write_text(VALID.replace("promises: {}", f"promises: {promises}").replace("alerts: {}", f"alerts: {alerts}"))
    return load_config(path)


def refusal(tmp_path: Path, **parts: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, **parts)
    return str(error.value).removeprefix(f"{tmp_path}/")


def test_every_stream_is_watched_without_a_config(tmp_path: Path) -> None:
    promises = load(tmp_path).stream("flights").promises
    assert promises.archive_lag.limit == timedelta(minutes=15)
    assert promises.archive_lag.severity is PromiseSeverity.CRITICAL
    assert promises.table_lag.severity is PromiseSeverity.WARNING
    assert promises.complete_by.deadlines == ()


def test_a_limit_alone_a_severity_alone_and_a_list_alone_are_short_forms(tmp_path: Path) -> None:
    promises = (
        load(
            tmp_path,
            "{archive_lag: 5m, table_lag: off, quarantine_share: 1%, named_stop: warning, paused: {limit: 1d}, "
            "complete_by: [{hour: 90m}, {day: '06:00', time_zone: Europe/Berlin}]}",
        )
        .stream("flights")
        .promises
    )
    assert promises.archive_lag.limit == timedelta(minutes=5)
    assert promises.archive_lag.severity is PromiseSeverity.CRITICAL
    assert not promises.table_lag.is_watched
    assert promises.quarantine_share.limit == Decimal("0.01")
    assert promises.named_stop.severity is PromiseSeverity.WARNING
    assert promises.paused.limit == timedelta(days=1)
    assert [str(deadline) for deadline in promises.complete_by.deadlines] == [
        "each hour 90 minutes after its end",
        "each day at 06:00 Europe/Berlin of the next day",
    ]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"promises": "{archive_leg: 5m}"}, "line 9: streams.flights.promises.archive_leg: unknown key; did you mean 'archive_lag'?"),
        ({"promises": "{archive_lag: 5}"}, "line 9: streams.flights.promises.archive_lag: a duration is a whole number and a unit: 90s, 10m, 6h or 28d (found: 5)"),
        ({"promises": "{archive_lag: 6h}"}, "line 9: streams.flights.promises: table_lag is shorter than archive_lag"),
        ({"promises": "{paused: {severity: loud}}"}, "line 9: streams.flights.promises.paused.severity: must be 'critical', 'warning' or 'off'"),
        ({"promises": "{complete_by: [{day: '25:00'}]}"}, "line 9: streams.flights.promises.complete_by.0.day: must be a time of day in quotes, such as '06:00'"),
        ({"promises": "{complete_by: [{hour: 1h, day: '06:00'}]}"}, "line 9: streams.flights.promises.complete_by.0.hour: give either `hour`, such as 90m, or `day`"),
        ({"promises": "{complete_by: [{day: '06:00', time_zone: Mars/Base}]}"}, "line 9: streams.flights.promises.complete_by.0.time_zone: 'Mars/Base' is no known time zone: give a name such as UTC or Europe/Berlin"),
        ({"alerts": "{channels: {mail: {type: fax}}}"}, "line 3: alerts.channels.mail"),
        ({"alerts": "{channels: {mail: {type: email, to: [ann]}}}"}, "line 3: alerts.channels.mail.to.0: must be an email address"),
        ({"alerts": "{channels: {mail: {type: email, to: [a@b.c]}}, critical: [mial]}"}, "line 3: alerts.critical.0: no channel 'mial'; channels: mail"),
        ({"alerts": "{quiet_hours: {begin: '22:00', end: '22:00', time_zone: UTC}}"}, "line 3: alerts.quiet_hours.end: is the beginning"),
        ({"alerts": "{airflow_url: localhost}"}, "line 3: alerts.airflow_url: must be an address that begins with http:// or https://"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_line_and_the_allowed_values(
    tmp_path: Path, parts: dict[str, str], message: str
) -> None:
    assert message in refusal(tmp_path, **parts)


@pytest.mark.parametrize(
    ("deadline", "now", "end", "due"),
    [
        ({"hour": "90m"}, "2026-03-01T10:29", "2026-03-01T08:00", "2026-03-01T09:30"),
        ({"hour": "90m"}, "2026-03-01T10:30", "2026-03-01T09:00", "2026-03-01T10:30"),
        ({"day": "06:00"}, "2026-03-01T05:59", "2026-02-28T00:00", "2026-02-28T06:00"),
        ({"day": "06:00"}, "2026-03-01T06:00", "2026-03-01T00:00", "2026-03-01T06:00"),
        # Berlin is an hour before UTC in winter and two in summer; the clock is put forward on 29 March 2026.
        ({"day": "06:00", "time_zone": "Europe/Berlin"}, "2026-03-28T05:00", "2026-03-27T23:00", "2026-03-28T05:00"),
        ({"day": "06:00", "time_zone": "Europe/Berlin"}, "2026-03-29T04:00", "2026-03-28T23:00", "2026-03-29T04:00"),
    ],
)
def test_deadline_names_the_newest_period_that_must_be_complete(
    deadline: dict[str, Any], now: str, end: str, due: str
) -> None:
    def utc(text: str) -> datetime:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)

    assert Deadline.model_validate(deadline).last_due(utc(now)) == (utc(end), utc(due))


@pytest.mark.parametrize(
    ("now", "end"),
    [("21:59", None), ("22:00", "2026-01-03T07:00"), ("23:59", "2026-01-03T07:00"), ("06:59", "2026-01-02T07:00"), ("07:00", None)],
)  # fmt: skip
def test_quiet_hours_may_span_midnight(now: str, end: str | None) -> None:
    hours = QuietHours.model_validate({"begin": "22:00", "end": "07:00", "time_zone": "UTC"})
    at = datetime.fromisoformat(f"2026-01-02T{now}").replace(tzinfo=UTC)
    assert hours.end_after(at) == (None if end is None else datetime.fromisoformat(end).replace(tzinfo=UTC))


def test_alerts_go_to_all_channels_but_those_of_escalations_unless_a_route_is_given(tmp_path: Path) -> None:
    channels = (
        "channels: {mail: {type: email, to: [a@b.c]}, chat: {type: slack}, pager: {type: webhook, connection: pd}}"
    )
    alerts = load(tmp_path, alerts=f"{{{channels}, escalate_to: [pager]}}").alerts
    assert alerts.route(PromiseSeverity.CRITICAL) == alerts.route(PromiseSeverity.WARNING) == ("mail", "chat")
    alerts = load(tmp_path, alerts=f"{{{channels}, critical: [chat], warning: []}}").alerts
    assert (alerts.route(PromiseSeverity.CRITICAL), alerts.route(PromiseSeverity.WARNING)) == (("chat",), ())


def test_a_deadline_of_a_day_falls_due_once_when_clocks_are_set_back() -> None:
    """02:30 passes twice on 31 October 2027 in Berlin. Between both, the deadline went back to the day before."""
    deadline = Deadline(day=time(2, 30), time_zone="Europe/Berlin")
    begun = datetime(2027, 10, 31, 0, 30, tzinfo=UTC)
    ends = [deadline.last_due(begun + timedelta(minutes=minutes))[0] for minutes in range(180)]
    assert set(ends) == {datetime(2027, 10, 30, 22, tzinfo=UTC)}


def test_a_deadline_at_a_time_that_clocks_skip_is_due_after_the_gap() -> None:
    deadline = Deadline(day=time(2, 30), time_zone="Europe/Berlin")
    for minutes in range(-120, 120):
        now = datetime(2027, 3, 28, 1, tzinfo=UTC) + timedelta(minutes=minutes)
        assert deadline.last_due(now)[1] <= now
