"""Where alerts are sent: channels, routes, reminders, escalation, and quiet hours."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from waybill.config.models.base import Matching, Section, ValueType, section_error
from waybill.config.models.groups import GroupName
from waybill.config.models.promises import IsTimeOfDay, IsTimeZone, PromiseSeverity, time_zone
from waybill.config.models.quantities import DurationBetween
from waybill.config.models.services import ConnectionId

ADDRESS = Matching(r"[^@\s<>,;]+@[^@\s<>,;]+", "an email address")
SLACK_CHANNEL = Matching(r"#?[\w.-]{1,80}", "the name or the id of a Slack channel, such as '#data-alerts', in quotes")

WebhookFormat = Literal["waybill", "pagerduty"]


class IsUrl(ValueType):
    """The address of a page, as text without a slash at its end."""

    type_name = "address"
    allowed = "an address that begins with http:// or https://"

    def parse(self, value: Any) -> str:
        parts = urlsplit(value) if isinstance(value, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError("must be an address that begins with http:// or https://")
        return str(value).rstrip("/")


class EmailChannel(Section):
    """Emails, in plain text and HTML."""

    type: Literal["email"] = Field(description="`email`.")
    connection: ConnectionId = Field("smtp_default", description="Airflow connection of the SMTP server (type `smtp`).")
    to: tuple[Annotated[str, ADDRESS], ...] = Field(description="A list of addresses.", min_length=1)
    sender: Annotated[str, ADDRESS] | None = Field(
        None, description="The sender. Default: `from_email` of the connection's extra fields."
    )


class SlackChannel(Section):
    """Messages to a Slack channel."""

    type: Literal["slack"] = Field(description="`slack`.")
    connection: ConnectionId = Field(
        "slack_default",
        description="Airflow connection of type `slackwebhook` (an incoming webhook), or `slack` (a token of the API).",
    )
    channel: Annotated[str, SLACK_CHANNEL] | None = Field(
        None, description="The channel. A token of the API needs it; a webhook has its own."
    )


class WebhookChannel(Section):
    """JSON documents to an HTTP server, such as PagerDuty's Events API v2."""

    type: Literal["webhook"] = Field(description="`webhook`.")
    connection: ConnectionId = Field(
        description="Airflow connection (type `http`): the URL; the password is sent as a bearer token, or is the "
        "routing key of `pagerduty`."
    )
    format: WebhookFormat = Field(
        "waybill", description="`waybill`: the incident's own document. `pagerduty`: an event of Events API v2."
    )


Channel = Annotated[EmailChannel | SlackChannel | WebhookChannel, Field(discriminator="type")]


class QuietHours(Section):
    """Hours in which warnings wait. Critical alerts are sent at any time."""

    begin: Annotated[time, IsTimeOfDay()] = Field(description="The beginning, such as '22:00'.")
    end: Annotated[time, IsTimeOfDay()] = Field(description="The end, such as '07:00'.")
    time_zone: Annotated[str, IsTimeZone()] = Field(description="The time zone of both.")

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if self.begin == self.end:
            raise section_error("end", "is the beginning: give another time, or remove quiet_hours")
        return self

    def end_after(self, now: datetime) -> datetime | None:
        """Return when the quiet hours that `now` lies in end; None if it lies in none."""
        zone = time_zone(self.time_zone)
        local = now.astimezone(zone)
        at = local.time()
        is_quiet = self.begin <= at < self.end if self.begin < self.end else at >= self.begin or at < self.end
        if not is_quiet:
            return None
        day = local.date() if at < self.end else local.date() + timedelta(days=1)
        return datetime.combine(day, self.end, zone)


class Alerts(Section):
    """Where the watch sends alerts about broken promises. Without channels it only records incidents."""

    channels: dict[GroupName, Channel] = Field({}, description="Where alerts can be sent, by name.")
    critical: tuple[GroupName, ...] | None = Field(
        None, description="The channels of critical alerts. Default: all but those that only `escalate_to` names."
    )
    warning: tuple[GroupName, ...] | None = Field(None, description="The channels of warnings. Default: as `critical`.")
    remind_after: Annotated[timedelta, DurationBetween("5m", "30d")] = Field(
        timedelta(hours=4), description="An open incident that is not acknowledged is sent again after each such time."
    )
    escalate_after: Annotated[timedelta, DurationBetween("1m", "30d")] = Field(
        timedelta(hours=1),
        description="A critical incident that is not acknowledged by then is sent to `escalate_to`, too.",
    )
    escalate_to: tuple[GroupName, ...] = Field((), description="The channels of escalations.")
    resolve_after: Annotated[timedelta, DurationBetween("1m", "1d")] = Field(
        timedelta(minutes=5),
        description="An incident is over when the promise has been kept for so long. So a flapping figure is one "
        "incident.",
    )
    quiet_hours: QuietHours | None = Field(None, description="When warnings wait.")
    dead_man: ConnectionId | None = Field(
        None, description="Airflow connection (type `http`) of an address that each complete watch requests (GET)."
    )
    airflow_url: Annotated[str, IsUrl()] | None = Field(None, description="Address of Airflow, for links.")
    runbooks_url: Annotated[str, IsUrl()] | None = Field(
        None, description="Address of the directory `docs/runbooks` of your copy of Waybill, for links."
    )

    @model_validator(mode="after")
    def _check_routes(self) -> Self:
        for key in ("critical", "warning", "escalate_to"):
            for number, name in enumerate(getattr(self, key) or ()):
                if name not in self.channels:
                    known = ", ".join(self.channels) or "none"
                    raise section_error((key, number), f"no channel {name!r}; channels: {known}")
        return self

    @property
    def connections(self) -> tuple[str, ...]:
        """Return the connection ids of the channels and of the dead man's switch, each once."""
        found = [channel.connection for channel in self.channels.values()]
        return tuple(dict.fromkeys([*found, *([self.dead_man] if self.dead_man else [])]))

    def route(self, severity: PromiseSeverity) -> tuple[str, ...]:
        """Return the channels of new alerts of a severity."""
        critical = self.critical
        if critical is None:
            critical = tuple(name for name in self.channels if name not in self.escalate_to) or tuple(self.channels)
        return critical if severity is PromiseSeverity.CRITICAL or self.warning is None else self.warning
