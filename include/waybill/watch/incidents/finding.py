"""What the watch found: a promise that is kept or broken, with its figure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from waybill.base.printable import printable
from waybill.config.models.promises import DurationPromise, Promise, PromiseName, PromiseSeverity
from waybill.config.models.quantities import duration_beside, rough_duration

REACHABLE = "reachable"
"""The promise of a service that all streams need; the subject names it."""
NO_ANSWER = "no answer"
"""The figure of a service that does not answer at all."""
READABLE = "readable"
"""The promise that the state of a stream's tables can be read."""
MEASURED = "measured"
"""The promise that each promise of a stream can be measured. If the stream is '', the subject names what was
measured."""
CONFIG = "config"
"""The promise that the config of a stream is valid. If the stream is '', the promise that the config as a whole
loads."""
TASKS = "tasks"
"""The promise that the last run of a DAG succeeded, and that its tasks move on; the subject is the DAG's id."""
CHANNEL = "channel"
"""The promise of a channel that alerts are sent to; the subject names it."""
DEAD_MAN = "dead man's switch"
"""The subject of `CHANNEL` for the dead man's switch. No channel can have this name."""

FindingKey = tuple[str, str, str]
"""Stream, promise and subject."""


class Verdict(StrEnum):
    """Whether a promise is kept."""

    KEPT = "kept"
    BROKEN = "broken"
    UNKNOWN = "unknown"
    """The promise could not be measured, because a service did not answer. Another finding reports the service."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One promise, as it was measured."""

    stream: str
    """'' if the promise belongs to no single stream."""
    promise: str
    """A `PromiseName`, `REACHABLE`, `READABLE`, `MEASURED`, `CONFIG`, `TASKS` or `CHANNEL`."""
    verdict: Verdict
    severity: PromiseSeverity
    figure: str = ""
    """The measured figure with its unit, for people: `23 min`."""
    limit: str = ""
    """The limit, for people: `at most 15 min`."""
    detail: str = ""
    """The cause of the figure: topic-partitions, offsets, the first error."""
    names: tuple[str, ...] = ()
    """The names of everything for which the promise is broken; `detail` names only the first ones."""
    command: str = ""
    """The one command to run."""
    subject: str = ""
    """Distinguishes several promises of one name: a deadline, a service."""
    since_ms: int | None = None
    """Since when the promise is broken, if that is known. Epoch ms."""
    value: float | None = None
    """The figure as a number: seconds, a share, or a count. None: there is no number, for example for a runway without
    an end."""
    link: str = ""
    """Address of the DAG run in Airflow's UI, if the finding is about one."""

    def __post_init__(self) -> None:
        """Make one line of each text for people: it goes to terminals, logs, mails, chats and pages.

        Texts hold names of groups, reasons of persons and messages of servers. The subject, which identifies the
        finding, stays as it is.
        """
        for name in ("figure", "limit", "detail"):
            object.__setattr__(self, name, _line(getattr(self, name)))
        if self.names:
            object.__setattr__(self, "names", tuple(_line(each) for each in self.names))

    @property
    def key(self) -> FindingKey:
        return self.stream, self.promise, self.subject


def _line(text: str) -> str:
    return text if text.isascii() and text.isprintable() else printable(text.replace("\n", " "))


def measured(
    stream: str,
    promise: PromiseName,
    settings: Promise,
    *,
    is_broken: bool,
    figure: str,
    limit: str,
    detail: str,
    command: str,
    since_ms: int | None,
    subject: str = "",
    value: float | None = None,
) -> Finding:
    """Return the finding of a figure that was measured. `detail` and `since_ms` count only if the promise is broken."""
    return Finding(
        stream=stream,
        promise=promise,
        verdict=Verdict.BROKEN if is_broken else Verdict.KEPT,
        severity=settings.severity,
        figure=figure,
        limit=limit,
        detail=detail if is_broken else "",
        command=command,
        subject=subject,
        since_ms=since_ms if is_broken else None,
        value=value,
    )


def duration_finding(
    stream: str,
    promise: PromiseName,
    settings: DurationPromise,
    seconds: float,
    now_ms: int,
    *,
    detail: str,
    command: str,
) -> Finding:
    """Return the finding of a duration that grows with time and has a limit.

    The promise is broken since the duration passed the limit.
    """
    limit_seconds = settings.limit.total_seconds()
    return measured(
        stream,
        promise,
        settings,
        is_broken=seconds > limit_seconds,
        figure=duration_beside(seconds, limit_seconds),
        limit=f"at most {rough_duration(limit_seconds)}",
        detail=detail,
        command=command,
        since_ms=now_ms - int((seconds - limit_seconds) * 1000),
        value=seconds,
    )
