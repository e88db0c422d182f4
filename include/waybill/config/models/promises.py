"""Promises of a stream: how far its data may be behind, and what else the watch reports when it is not kept."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Self
from zoneinfo import ZoneInfo

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from waybill.config.models.base import Section, ValueType, section_error
from waybill.config.models.quantities import DurationBetween, IsRatio, IsShare, WholeNumberBetween


class PromiseName(StrEnum):
    """What can be promised: the keys of `promises`."""

    ARCHIVE_LAG = "archive_lag"
    RETENTION_RUNWAY = "retention_runway"
    TABLE_LAG = "table_lag"
    COMPLETE_BY = "complete_by"
    RUN_DURATION = "run_duration"
    QUARANTINE_SHARE = "quarantine_share"
    DUPLICATE_SHARE = "duplicate_share"
    LATE_SHARE = "late_share"
    DEDUP_WINDOW = "dedup_window"
    NAMED_STOP = "named_stop"
    HELD_PUBLICATION = "held_publication"
    LEDGER_BALANCE = "ledger_balance"
    VOLUME = "volume"
    PAUSED = "paused"
    PARSER_FAILED = "parser_failed"


class PromiseSeverity(StrEnum):
    """How loud the alert about a broken promise is; `off`: it is not watched."""

    CRITICAL = "critical"
    """Sent at once, also in quiet hours."""
    WARNING = "warning"
    """It waits for the end of the quiet hours."""
    OFF = "off"


class IsTimeOfDay(ValueType):
    """A `time` without a zone, to the minute."""

    type_name = "time of day"
    allowed = "00:00 to 23:59, in quotes"

    def parse(self, value: Any) -> time:
        if isinstance(value, time):
            return value
        try:
            return datetime.strptime(value, "%H:%M").time()  # noqa: DTZ007 - a time of day has no zone
        except (TypeError, ValueError):
            # YAML 1.1 reads 06:30 without quotes as a number of minutes.
            raise ValueError("must be a time of day in quotes, such as '06:00'") from None

    def format(self, value: Any) -> str:
        return f"{value:%H:%M}"

    def json_schema(self) -> JsonSchemaValue:
        return {"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"}


class IsTimeZone(ValueType):
    """The name of a time zone of the IANA database."""

    type_name = "time zone"
    allowed = "a name of the IANA database, such as UTC or Europe/Berlin"

    def parse(self, value: Any) -> str:
        try:
            return str(value) if time_zone(value) else ""
        except (KeyError, TypeError, ValueError, OSError):  # `ZoneInfoNotFoundError` is a `KeyError`
            raise ValueError(f"{value!r} is no known time zone: give a name such as UTC or Europe/Berlin") from None


def time_zone(name: str) -> tzinfo:
    """Return the time zone of a config. Raises `KeyError` or another error for a name that is not known."""
    return UTC if name == "UTC" else ZoneInfo(name)


class Promise(Section):
    """A promise. `off` alone is the short form of `{severity: off}`."""

    severity: PromiseSeverity = Field(
        PromiseSeverity.WARNING, description="`critical`, `warning` (which waits for the end of quiet hours), or `off`."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, value: Any) -> Any:
        """Read a severity alone, or a limit alone."""
        if value is False:  # as Python's own dump of `off`, and other YAML libraries, may write it
            return {"severity": PromiseSeverity.OFF}
        if not isinstance(value, str | int | float):
            return value
        if value in set(PromiseSeverity) or "limit" not in cls.model_fields:
            return {"severity": value}
        return {"limit": value}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": ["string", "number"]}, handler(schema)]}

    @property
    def is_watched(self) -> bool:
        return self.severity is not PromiseSeverity.OFF


class CriticalPromise(Promise):
    """A promise whose alert is sent at any time unless the config says otherwise."""

    severity: PromiseSeverity = Field(
        PromiseSeverity.CRITICAL,
        description="`critical`, `warning` (which waits for the end of quiet hours), or `off`.",
    )


class ArchiveLag(CriticalPromise):
    """The age of the oldest message in Kafka that is not in S3. A time alone is the limit: `archive_lag: 15m`."""

    limit: Annotated[timedelta, DurationBetween("1m", "30d")] = Field(
        timedelta(minutes=15), description="The promise is broken beyond it."
    )


class RetentionRunway(CriticalPromise):
    """The time until Kafka's retention deletes messages that are not archived, at the rates of the last hour."""

    limit: Annotated[timedelta, DurationBetween("1m", "30d")] = Field(
        timedelta(hours=6), description="The promise is broken below it."
    )


class TableLag(Promise):
    """The age of the oldest archived message that is not published."""

    limit: Annotated[timedelta, DurationBetween("1m", "30d")] = Field(
        timedelta(hours=3), description="The promise is broken beyond it."
    )


class RunDuration(Promise):
    """The time since a partition run was planned that has not ended yet."""

    limit: Annotated[timedelta, DurationBetween("1m", "30d")] = Field(
        timedelta(hours=2), description="The promise is broken beyond it."
    )


class Paused(Promise):
    """The time since a person paused the stream or a stage of it."""

    limit: Annotated[timedelta, DurationBetween("1m", "365d")] = Field(
        timedelta(hours=8), description="The promise is broken beyond it."
    )


DurationPromise = ArchiveLag | TableLag | RunDuration | Paused
"""Promises that a duration, which grows with time, stays below a limit."""


class ShareOfRuns(Promise):
    """A share of the messages of the runs that were published in the last hour."""

    limit: Annotated[Decimal, IsShare()] = Field(Decimal("0.1"), description="The promise is broken beyond it.")
    min_messages: Annotated[int, WholeNumberBetween(1, 1_000_000_000)] = Field(
        100, description="Fewer messages break no promise."
    )


class DuplicateShare(ShareOfRuns):
    """The share of rows that sweeps found to be sent again, in the last hour."""

    limit: Annotated[Decimal, IsShare()] = Field(Decimal("0.2"), description="The promise is broken beyond it.")


_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_LATE_AFTER = (_HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 3 * _DAY, 7 * _DAY, 30 * _DAY)
"""The bounds of the histogram of lateness that each commit stores."""


class LateShare(ShareOfRuns):
    """The share of rows whose event time is long before their Kafka timestamp, of the last hour's runs."""

    limit: Annotated[Decimal, IsShare()] = Field(Decimal("0.2"), description="The promise is broken beyond it.")
    min_messages: Annotated[int, WholeNumberBetween(1, 1_000_000_000)] = Field(
        1000, description="Fewer rows break no promise."
    )
    late_after: Annotated[timedelta, DurationBetween("1h", "30d")] = Field(
        _DAY, description="A row is late if it came so long after its event time: 1h, 3h, 6h, 12h, 1d, 3d, 7d or 30d."
    )

    @model_validator(mode="after")
    def _check_bucket(self) -> Self:
        if self.late_after not in _LATE_AFTER:
            raise section_error("late_after", "must be one of 1h, 3h, 6h, 12h, 1d, 3d, 7d, 30d")
        return self


class StreamVolume(Promise):
    """The messages that producers sent in the last complete hour, against the same hour of the last four weeks."""

    at_least: Annotated[Decimal, IsRatio()] = Field(
        Decimal("0.5"), description="The promise is broken below this ratio to the median."
    )
    at_most: Annotated[Decimal, IsRatio()] = Field(
        Decimal(5), description="The promise is broken above this ratio to the median."
    )
    min_messages: Annotated[int, WholeNumberBetween(1, 1_000_000_000)] = Field(
        1000, description="An hour whose median is less breaks no promise."
    )
    min_weeks: Annotated[int, WholeNumberBetween(1, 4)] = Field(
        2, description="How many of the four weeks must be known for a verdict."
    )
    time_zone: Annotated[str, IsTimeZone()] = Field(
        "UTC",
        description="The time zone whose hours are compared. With the zone of your users, a peak at 09:00 local time "
        "is compared with that of 09:00 also in the weeks after clocks change.",
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.at_most < self.at_least:
            raise section_error("at_least", "is more than at_most: lower it, or raise at_most")
        return self


class Deadline(Section):
    """When an hour or a day of event time must be complete: `{hour: 90m}`, or `{day: '06:00', time_zone: …}`."""

    hour: Annotated[timedelta, DurationBetween("1m", "7d")] | None = Field(
        None, description="Each hour is complete so long after its end."
    )
    day: Annotated[time, IsTimeOfDay()] | None = Field(
        None, description="Each day of `time_zone` is complete at this time of the next day."
    )
    time_zone: Annotated[str, IsTimeZone()] = Field("UTC", description="The time zone of `day`.")

    @model_validator(mode="after")
    def _check_one_period(self) -> Self:
        if (self.hour is None) == (self.day is None):
            raise section_error("hour", "give either `hour`, such as 90m, or `day`, such as '06:00'")
        return self

    def last_due(self, now: datetime) -> tuple[datetime, datetime]:
        """Return the end of the newest period that must be complete at `now`, and since when it must be."""
        if self.hour is not None:
            end = (now - self.hour).astimezone(UTC).replace(minute=0, second=0, microsecond=0)
            return end, end + self.hour
        assert self.day is not None
        zone = time_zone(self.time_zone)
        day = now.astimezone(zone).date()
        # Compared in UTC: on the day on which clocks are set back, a local time passes twice, and is due once.
        if datetime.combine(day, self.day, zone).astimezone(UTC) > now:
            day -= timedelta(days=1)
        midnight = datetime.combine(day, time(), zone)
        return midnight.astimezone(UTC), datetime.combine(day, self.day, zone).astimezone(UTC)

    def __str__(self) -> str:
        if self.hour is not None:
            return f"each hour {int(self.hour.total_seconds() // 60)} minutes after its end"
        return f"each day at {self.day:%H:%M} {self.time_zone} of the next day"


class CompleteBy(CriticalPromise):
    """When the hours and days of event time must be complete in the table. A list alone gives the deadlines."""

    deadlines: tuple[Deadline, ...] = Field((), description="A list; without one, nothing is promised.")

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        return {"deadlines": value} if isinstance(value, list | tuple) else value


class Promises(Section):
    """What the watch checks each minute. A broken promise is one incident, and one alert."""

    archive_lag: ArchiveLag = Field(
        ArchiveLag(), description="The age of the oldest message in Kafka that is not in S3."
    )
    retention_runway: RetentionRunway = Field(
        RetentionRunway(), description="The time until Kafka's retention deletes messages that are not archived."
    )
    table_lag: TableLag = Field(
        TableLag(), description="The age of the oldest archived message that is neither in the table nor in quarantine."
    )
    complete_by: CompleteBy = Field(
        CompleteBy(), description="When hours and days of event time must be complete in the table."
    )
    run_duration: RunDuration = Field(
        RunDuration(), description="How long a partition run may take from its plan to its end."
    )
    quarantine_share: ShareOfRuns = Field(
        ShareOfRuns(), description="The share of messages that went to quarantine in the last hour."
    )
    parser_failed: CriticalPromise = Field(
        CriticalPromise(), description="No built-in parser has raised at a message in the last hour's runs."
    )
    duplicate_share: DuplicateShare = Field(
        DuplicateShare(), description="The share of rows that sweeps found to be sent again in the last hour."
    )
    late_share: LateShare = Field(
        LateShare(), description="The share of rows that came long after their event time, in the last hour."
    )
    volume: StreamVolume = Field(
        StreamVolume(), description="The messages of the last complete hour, against the same hour of earlier weeks."
    )
    dedup_window: Promise = Field(
        Promise(), description="Sweeps compare keys over the whole `dedup.window`, without a part that they skip."
    )
    named_stop: CriticalPromise = Field(
        CriticalPromise(), description="No topic-partition is stopped until a person decides."
    )
    held_publication: CriticalPromise = Field(
        CriticalPromise(), description="No run is held until a person releases or rejects it."
    )
    ledger_balance: CriticalPromise = Field(
        CriticalPromise(),
        description="The newest recorded ledger of the stream balances: no line has a figure too many.",
    )
    paused: Paused = Field(Paused(), description="How long the stream, or a stage of it, may be paused.")

    @model_validator(mode="after")
    def _check_lags(self) -> Self:
        lags = self.archive_lag, self.table_lag
        if all(each.is_watched for each in lags) and self.table_lag.limit < self.archive_lag.limit:
            raise section_error(
                ("table_lag", "limit"),
                "table_lag is shorter than archive_lag: a message is in the table only after it is archived; raise "
                "table_lag, or lower archive_lag",
            )
        return self
