"""Values of the config with a special syntax: regular expressions, cron expressions, points in time."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, date, datetime, time
from typing import Any

from waybill.config.models.base import ValueType
from waybill.config.models.enums import StartPosition

_SCHEDULE_PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")


class IsRegex(ValueType):
    """A regular expression for Python's `re`, as text."""

    type_name = "regular expression"
    allowed = "the syntax of Python's `re`"

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError("must be a regular expression that matches the whole topic name")
        try:
            re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return value


class IsPattern(ValueType):
    """A regular expression for RE2 with named groups, as text."""

    type_name = "regular expression"
    allowed = "the syntax of RE2, with at least one named group: `(?P<time>…)`"

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError("must be a regular expression with named groups, (?P<name>…)")
        group_names(value)
        return value


def group_names(pattern: str) -> tuple[str, ...]:
    """Return the names of the pattern's groups, in order.

    Raise `ValueError` if RE2 refuses the pattern, if it has no named group, or two groups of one name.
    """
    # Arrow runs the pattern later, so Arrow checks it. Its import takes 0.2 s, so only streams with a pattern need it.
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        match_type = pc.extract_regex(pa.array([], pa.string()), pattern).type
    except pa.ArrowInvalid as error:
        text = str(error)
        if "unnamed groups" in text:
            raise ValueError("every group must have a name, (?P<name>…), or must not capture, (?:…)") from None
        detail = text.removeprefix("Invalid regular expression: ")
        raise ValueError(f"not a regular expression of RE2, which has no look-around and no \\1: {detail}") from None
    groups = tuple(field.name for field in match_type)
    if not groups:
        raise ValueError("must have a named group, (?P<name>…), for each field to read")
    [(name, count)] = Counter(groups).most_common(1)
    if count > 1:
        raise ValueError(f"two groups have the name {name!r}")
    return groups


class IsSchedule(ValueType):
    """An Airflow schedule: a cron expression, or one of Airflow's presets."""

    type_name = "schedule"
    allowed = "a cron expression of five fields (`5 * * * *`) or " + ", ".join(f"`{p}`" for p in _SCHEDULE_PRESETS)

    def parse(self, value: Any) -> str:
        if isinstance(value, str) and value in _SCHEDULE_PRESETS:
            return value
        if not isinstance(value, str) or len(value.split()) != 5:
            raise ValueError(f"must be {self.allowed.replace('`', '')}")
        _check_cron(value)
        return value


_PLAIN_CRON = re.compile(
    r"(\*(/[1-5]?[0-9])?|[1-5]?[0-9])"  # the minute
    r" (\*(/1?[0-9])?|1?[0-9]|2[0-3])"  # the hour
    r" (\*|[1-9]|1[0-9]|2[0-8]) (\*|[1-9]|1[0-2]) (\*|[0-6])",  # the day, the month, the weekday
    re.ASCII,
)
"""Expressions of `*`, `*/n` and single numbers, such as the defaults. Each matches a time, unless n is 0."""


def surely_matches_a_time(expression: str) -> bool:
    """Return whether a cron expression is so plain that it can be accepted without croniter."""
    return _PLAIN_CRON.fullmatch(expression) is not None and "/0" not in expression


def _check_cron(expression: str) -> None:
    if surely_matches_a_time(expression):
        return
    # Airflow reads cron expressions with croniter, too. Its import takes some ms, so only other expressions need it.
    from croniter import CroniterBadCronError, CroniterBadDateError, croniter

    try:
        croniter(expression, datetime(2026, 1, 1, tzinfo=UTC)).get_next()
    except CroniterBadDateError:
        raise ValueError("the cron expression matches no time") from None
    except (CroniterBadCronError, ValueError, OverflowError) as error:
        raise ValueError(f"not a cron expression: {error}") from None


class IsStart(ValueType):
    """A `StartPosition`, or a `datetime` with a time zone."""

    type_name = "start"
    allowed = (
        "`earliest` (Kinesis: also `trim_horizon`), `latest`, or an ISO 8601 time (`2026-01-31T00:00:00Z`; without a "
        "zone it is UTC)"
    )

    def parse(self, value: Any) -> StartPosition | datetime:
        if isinstance(value, str) and value in set(StartPosition):
            return StartPosition(value)
        start = _parse_time(value)
        if start is None or start.year < 1970:
            raise ValueError("must be 'earliest', 'latest' or an ISO 8601 time from 1970 on, 2026-01-31T00:00:00Z")
        return start

    def format(self, value: Any) -> str:
        return value.isoformat() if isinstance(value, datetime) else str(value)


def _parse_time(value: Any) -> datetime | None:
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    try:
        parsed = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError):
        return None
