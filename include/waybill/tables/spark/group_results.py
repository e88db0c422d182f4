"""The results of a group's Spark application, by stream: with them, the driver reports its results to Airflow.

The driver may run on any machine, so the results are an object in S3 below the archive's prefix. There is one for each
group and job: the next run replaces it. The driver replaces it whenever a stream has ended, so that a driver that is
killed leaves the results of the streams that had ended, and a retry does only the rest.

This module does not import pyspark: Airflow's tasks import it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from waybill.base.documents import Document
from waybill.config.names import group_results_key
from waybill.services.store import Store

_DOCUMENT = Document(
    "results {where}: not readable ({error}): remove the object, and run again", name="results {where}"
)


class StreamOutcome(StrEnum):
    """How the work on a stream ended in an application."""

    NOTHING_NEW = "nothing_new"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StreamResult:
    """The result of an application for one stream. The field names are those of the JSON document."""

    stream: str
    status: StreamOutcome
    committed: bool = False
    """Whether its table may have a new snapshot. A stream may fail after it has committed a part."""
    rows: int = 0
    """Rows that were committed."""
    seconds: float = 0.0
    error: str | None = None
    """Class of the error that ended it."""
    message: str | None = None
    retriable: bool = False
    """Whether the same call may succeed later."""
    lines: tuple[str, ...] = ()
    """The reports for people."""
    alerts: tuple[str, ...] = ()
    """Alerts for a person, although the work is done: many messages in quarantine, an archive fault, a window that is
    too short."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """The counts that only this application committed: `rows`, `quarantined`, `duplicates`."""

    @property
    def is_sound(self) -> bool:
        """Return whether the stream neither failed nor has an alert."""
        return self.status is not StreamOutcome.FAILED and not self.alerts

    @property
    def problems(self) -> tuple[str, ...]:
        """Return the error and the alerts, as text."""
        error = () if self.error is None else (f"{self.error}: {self.message}",)
        return (*error, *self.alerts)

    def after(self, before: StreamResult) -> StreamResult:
        """Merge the results of two tries; this is the later one."""
        is_done = self.status is StreamOutcome.NOTHING_NEW and before.committed
        return dataclasses.replace(
            self,
            status=StreamOutcome.DONE if is_done else self.status,
            committed=self.committed or before.committed,
            rows=self.rows + before.rows,
            seconds=round(self.seconds + before.seconds, 3),
            lines=(*before.lines, *self.lines),
            alerts=(*before.alerts, *self.alerts),
            counts=dict(Counter(before.counts) + Counter(self.counts)),
        )

    def document(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> StreamResult:
        """Parse what `document` returned. Raises `KeyError`, `TypeError` or `ValueError`."""
        texts = {name: tuple(document[name]) for name in ("lines", "alerts")}
        return cls(**{**document, **texts, "status": StreamOutcome(document["status"])})


@dataclass(frozen=True, slots=True)
class GroupResults:
    """The results of one run of a group's job. A retry adds its results to those of earlier applications."""

    run: str
    """The id of the DAG run."""
    selected: tuple[str, ...]
    """The streams that the run is for."""
    ended: bool = False
    """Whether the application came to its end, so that each selected stream has a result."""
    streams: Mapping[str, StreamResult] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """Return the selected streams without a result."""
        return [name for name in self.selected if name not in self.streams]

    def to_json(self) -> bytes:
        """Return the document, with `"v": 1`."""
        streams = [result.document() for result in self.streams.values()]
        return _DOCUMENT.write({"run": self.run, "selected": self.selected, "ended": self.ended, "streams": streams})

    @classmethod
    def load(cls, store: Store, group: str, job: str, run: str) -> GroupResults | None:
        """Return the results of a run; None if there are none, or only those of another run.

        Raises `DocumentDamaged`, `DocumentTooNew`, `StoreUnavailable`.
        """
        key = group_results_key(store.prefix, group, job)
        text = store.read_if_exists(key)
        if text is None:
            return None
        found = _DOCUMENT.parse(key, text, cls._of_fields)
        return found if found.run == run else None

    @classmethod
    def _of_fields(cls, fields: Mapping[str, Any]) -> GroupResults:
        results = {each["stream"]: StreamResult.of_document(each) for each in fields["streams"]}
        return cls(fields["run"], tuple(fields["selected"]), fields["ended"], results)


def _final(earlier: GroupResults | None) -> dict[str, StreamResult]:
    return {} if earlier is None else {name: result for name, result in earlier.streams.items() if not result.retriable}


class ResultsRecorder:
    """Replaces the object with the results whenever a stream has ended. Threads may share it."""

    def __init__(
        self, store: Store, group: str, job: str, run: str, selected: Sequence[str], earlier: GroupResults | None = None
    ) -> None:
        """Record an empty result. `earlier`: the results of an earlier try of the run, which this one continues."""
        self.results = GroupResults(run, tuple(selected), streams=_final(earlier))
        """The results so far, with those of the earlier try that this one need not change."""
        self._earlier = earlier
        self._store = store
        self._key = group_results_key(store.prefix, group, job)
        self._lock = threading.Lock()
        self._write()

    def add(self, result: StreamResult) -> None:
        """Add the result of a stream. Raises `StoreUnavailable`."""
        with self._lock:
            streams = {**self.results.streams, result.stream: self._with_earlier(result)}
            self.results = dataclasses.replace(self.results, streams=streams)
            self._write()

    def end(self) -> None:
        """Record that the application came to its end. Raises `StoreUnavailable`."""
        with self._lock:
            self.results = dataclasses.replace(self.results, ended=True)
            self._write()

    def _with_earlier(self, result: StreamResult) -> StreamResult:
        """Return the result of the run: the merged results of both tries."""
        if self._earlier is None:
            return result
        before = self._earlier.streams.get(result.stream)
        if before is not None:
            return result.after(before)
        # The driver of that try was killed. It may have committed, and this try found nothing new.
        return result if self._earlier.ended else dataclasses.replace(result, committed=True)

    def _write(self) -> None:
        self._store.replace(self._key, self.results.to_json())
