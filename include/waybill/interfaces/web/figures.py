"""Figures of pages: a text, its tone, and a link or a command with details."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from html import escape

from waybill.config.models.promises import PromiseSeverity
from waybill.config.models.quantities import rough_duration
from waybill.watch.incidents.finding import Verdict
from waybill.watch.promises.status import PromiseStatus

_UNKNOWN = "–"
_UNITS = ("KB", "MB", "GB", "TB", "PB")


class Tone(StrEnum):
    """How a figure is coloured. The order is that of `worst`."""

    NONE = "none"
    OK = "ok"
    UNKNOWN = "unknown"
    PAUSED = "paused"
    WARNING = "warning"
    CRITICAL = "critical"


_ORDER = list(Tone)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a page."""

    text: str
    tone: Tone = Tone.NONE
    href: str = ""
    """The run, log or page with details; '' if only a command shows them."""
    command: str = ""
    """The command that prints it."""
    title: str = ""
    """The meaning of the figure, with its limit."""
    value: float | None = None
    note: str = ""
    """The age of the figure, if it is older than the rest of the page."""

    @property
    def has_more(self) -> bool:
        return bool(self.title or self.command)


def worst(tones: list[Tone]) -> Tone:
    """Return the worst of the tones; `OK` if there are none."""
    return max(tones, key=_ORDER.index, default=Tone.OK)


def tone_of(verdict: Verdict, severity: PromiseSeverity) -> Tone:
    """Return the tone of a promise."""
    if verdict is Verdict.KEPT:
        return Tone.OK
    if verdict is Verdict.UNKNOWN:
        return Tone.UNKNOWN
    return Tone.CRITICAL if severity is PromiseSeverity.CRITICAL else Tone.WARNING


def promise_figure(promise: PromiseStatus | None, now_ms: int, text: str | None = None) -> Figure:
    """Return the figure of a promise; `text` instead of the measured one.

    If the promise could not be measured now, show the last known figure with its age.
    """
    if promise is None:
        return Figure(_UNKNOWN, Tone.UNKNOWN, title="it was never measured")
    title = "; ".join(each for each in (f"limit: {promise.limit}" if promise.limit else "", promise.detail) if each)
    tone, note = tone_of(promise.verdict, promise.severity), ""
    if promise.verdict is Verdict.UNKNOWN:
        title = "; ".join(each for each in ("it could not be measured now", title) if each)
        note = "" if promise.measured_ms is None else age_text(promise.measured_ms, now_ms)
    shown = text or promise.figure or _UNKNOWN
    return Figure(shown, tone, safe_url(promise.link), promise.command, title, promise.value, note)


def safe_url(url: str) -> str:
    """Return the address if its scheme is http or https; else ''. A page must never link to a script."""
    return url if url.startswith(("https://", "http://")) else ""


# --- values as text ---------------------------------------------------------------------------------------------------


def count_text(number: float | None) -> str:
    """Return a number with thousands separators."""
    return _UNKNOWN if number is None else f"{number:,.0f}"


def rate_text(per_second: float | None) -> str:
    """Return a rate: `1,234/s`, `0.3/s`."""
    if per_second is None:
        return _UNKNOWN
    return f"{per_second:,.0f}/s" if per_second >= 10 or per_second == 0 else f"{per_second:.1f}/s"


def bytes_text(size: float | None) -> str:
    """Return a size in bytes: `18.2 MB`."""
    if size is None:
        return _UNKNOWN
    if size < 1000:
        return f"{size:.0f} B"
    amount, units = size / 1000, iter(_UNITS)
    unit = next(units)
    while amount >= 999.95 and (larger := next(units, None)):
        amount, unit = amount / 1000, larger
    return f"{amount:.1f} {unit}"


def duration_text(seconds: float | None) -> str:
    """Return a duration: `23 min`."""
    return _UNKNOWN if seconds is None else rough_duration(seconds)


def time_text(time_ms: int | None) -> str:
    """Return a time (epoch ms) in UTC: `2026-01-31 12:00:00Z`."""
    if time_ms is None:
        return _UNKNOWN
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


class AgeText(str):
    """An age such as `23 min ago`. In HTML it is an element with the seconds, so that a page can go on counting."""

    __slots__ = ("seconds", "time")
    seconds: int
    time: str

    def __html__(self) -> str:
        return f'<time datetime="{escape(self.time)}" data-age="{self.seconds}">{escape(self)}</time>'


def age_text(time_ms: int | None, now_ms: int) -> str:
    """Return how long ago a time was: `23 min ago`, as an `AgeText`; `never` for no time."""
    if time_ms is None:
        return "never"
    seconds = max(0, now_ms - time_ms) // 1000
    text = AgeText(f"{rough_duration(seconds)} ago")
    text.seconds, text.time = seconds, datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return text
