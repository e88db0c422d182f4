"""The status document: what the pages in Airflow's UI show, as each watch stores it.

The watch measures these figures anyway, or reads them with the tables every five minutes. So a page view needs only
this one object, and no request to a service. Each part has the time at which it was read, so while a service does not
answer, a page shows the last known state with its age.

The document is gzipped JSON, `{"v": 1, ...}`. An older version of Waybill ignores fields that a newer version added.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from functools import cache

from pydantic import TypeAdapter

from waybill.base.decision import Surface
from waybill.base.documents import Document, gzipped
from waybill.config.models.promises import PromiseSeverity
from waybill.watch.incidents.finding import Verdict

_DOCUMENT = Document(
    "{where} does not hold a status document ({kind}: {error}). Delete it: the next watch writes it again",
    dump=gzipped,
    unpack=gzip.decompress,
)


# --- all streams ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """Whether a service answers: Kafka, ZooKeeper, S3, the catalog, Airflow."""

    name: str
    verdict: Verdict
    figure: str
    detail: str
    answered_ms: int | None
    """When the service last answered a watch; None: never since the first status document."""


@dataclass(frozen=True, slots=True)
class PromiseStatus:
    """A promise, as it was measured. The fields are those of `Finding`."""

    stream: str
    promise: str
    subject: str
    verdict: Verdict
    severity: PromiseSeverity
    figure: str = ""
    limit: str = ""
    detail: str = ""
    command: str = ""
    since_ms: int | None = None
    value: float | None = None
    link: str = ""
    measured_ms: int | None = None
    """When an earlier watch measured figure, detail and value; None: the watch of this document measured them."""
    known_verdict: Verdict | None = None
    """The verdict of that earlier watch. `verdict` is `UNKNOWN` then."""


@dataclass(frozen=True, slots=True)
class IncidentStatus:
    """An incident that is open, or was resolved within the last day."""

    id: str
    stream: str
    promise: str
    subject: str
    severity: PromiseSeverity
    opened_ms: int
    since_ms: int
    figure: str
    limit: str
    detail: str
    command: str
    link: str = ""
    resolved_ms: int | None = None
    outcome: str = ""
    acknowledged_by: str = ""
    """'' if nobody has acknowledged the incident."""
    acknowledged_ms: int | None = None
    acknowledged_reason: str = ""
    runbook: str = ""
    """Address of the runbook; '' if the config names none."""


@dataclass(frozen=True, slots=True)
class ReplayStatus:
    """A replay request."""

    id: str
    stream: str
    target: str
    requester: str
    state: str
    reason: str
    share: float
    """How much of the range is read, from 0 to 1."""
    found: int
    delivered: int
    rejected: int
    created_ms: int
    finished_ms: int | None


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A Kafka broker: one that is alive, or that should hold replicas."""

    id: int
    rack: str
    is_alive: bool
    leads: int
    """The number of topic-partitions that the broker leads."""
    replicas: int
    out_of_sync: int
    """How many of its replicas are out of sync."""
    disk_used: float | None
    """The used share of its fullest log directory, from 0 to 1; None: unknown."""
    votes: bool
    """Whether it is a controller."""


@dataclass(frozen=True, slots=True)
class UsageStatus:
    """The usage of processes of one kind for one stream on one day (UTC)."""

    day: str
    """The day, as `2026-01-31`."""
    process: str
    stream: str
    """'' for processes that work for all streams."""
    requests: dict[str, int]
    """S3 requests by operation, with S3's names."""
    sent_bytes: int
    received_bytes: int
    cpu_seconds: float
    messages: int
    """Messages that were archived."""


# --- one stream -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainRange:
    """Offsets `[first, next)`."""

    first: int
    next: int
    kind: str = ""
    """The kind of an accepted gap."""
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TopicPartitionStatus:
    """The positions of a topic-partition in Kafka, in S3, in the table, and among the unique rows, as offsets."""

    topic: str
    partition: int
    earliest: int
    """Kafka's log start."""
    end: int
    """Kafka's log end."""
    committed: int
    """The committed offset: S3 has all messages from `archived_from` up to it."""
    archived_from: int
    published: int | None = None
    """The table and the quarantine have all messages before this offset; None: the table could not be read yet."""
    swept: int | None = None
    """Sweeps have compared all rows before this offset; None: the stream has no dedup, or no sweep has run."""
    archived_messages: int | None = None
    lag_seconds: float = 0.0
    gaps: tuple[ChainRange, ...] = ()
    """Accepted gaps."""
    stop: str = ""
    """The named stop; '' if ingest is not stopped."""

    @property
    def lag(self) -> int:
        """Return the offsets in Kafka that are not archived: an upper bound of the messages."""
        return max(0, self.end - max(self.committed, self.earliest))

    @property
    def table_lag(self) -> int | None:
        """Return the archived offsets that are neither in the table nor in quarantine."""
        return None if self.published is None else max(0, self.committed - self.published)


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """The lags of a stream at one watch."""

    at_ms: int
    archive_lag_seconds: float | None
    table_lag_seconds: float | None
    behind: int
    """Offsets in Kafka that were not archived."""


@dataclass(frozen=True, slots=True)
class StopStatus:
    """A topic-partition whose ingest is stopped until a person decides."""

    topic: str
    partition: int
    error: str
    message: str
    stopped_ms: int
    messages_at_most: int | None
    """The most messages that are lost if the gap is accepted; None: unknown."""


@dataclass(frozen=True, slots=True)
class PauseStatus:
    """A paused stage."""

    stage: str
    by: str
    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A partition run or a sweep that published rows."""

    stage: str
    at_ms: int
    rows: int
    quarantined: int = 0
    duplicates: int = 0
    late: int = 0
    run: str = ""
    """The DAG run that made the commit; '' if the watch could not read it from Airflow."""


@dataclass(frozen=True, slots=True)
class ExampleStatus:
    """A message in quarantine, with the full reason."""

    partition: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class QuarantineStatus:
    """Messages in quarantine with one topic, parser and kind of reason."""

    reason: str
    parser: str
    topic: str
    rows: int
    example_partition: int
    example_offset: int
    first_ms: int
    last_ms: int
    examples: tuple[ExampleStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckStatus:
    """A check of an audit that failed."""

    check: str
    severity: str
    observed: str
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditStatus:
    """The audit of a run."""

    plan: str
    at_ms: int
    checks: int
    failed: tuple[CheckStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class HoldStatus:
    """A run that is not published until a person releases or rejects it."""

    at_ms: int
    """When the run was planned."""
    failed: tuple[str, ...]
    """The failed critical checks."""
    plan: str = ""
    """The id of the held plan; '' if it was read by an earlier version of Waybill, which did not store it."""


@dataclass(frozen=True, slots=True)
class BackfillStatus:
    """A backfill."""

    id: str
    state: str
    kind: str
    """`range` or `generation`."""
    tasks: str
    """How many tasks are done: `3 of 8`."""
    offsets: int
    by: str
    reason: str
    requested_ms: int
    diff: tuple[str, ...] = ()
    """The changes that the backfill would make, line by line."""
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class WindowStatus:
    """How far back in arrival time sweeps compare keys, and the key index that limits this."""

    effective_ms: int
    promised_ms: int
    floor_ms: int
    index_keys: int | None
    """None: there is no usable index; the next sweep builds it."""
    index_bytes: int | None
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """The newest recorded ledger."""

    made_ms: int
    imbalances: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    """What it counted in the log, the archive, the tables, quarantine and dedup; empty for a ledger without counts."""


@dataclass(frozen=True, slots=True)
class UnreadPart:
    """A part of the details that could not be read: the document holds the part from an earlier watch."""

    error: str
    read_ms: int | None
    """When the part was last read; None: it was never read, so it is unknown."""


@dataclass(frozen=True, slots=True)
class StreamDetails:
    """The parts that are read with the tables, every five minutes. A part that cannot be read keeps its last state."""

    read_ms: int
    swept: dict[str, int] = field(default_factory=dict)
    """By topic-partition: the offset before which sweeps have compared all rows."""
    quarantine: tuple[QuarantineStatus, ...] = ()
    quarantine_snapshot: int | None = None
    """The snapshot of the quarantine that was counted. If it has not changed, the next watch keeps the figures."""
    audits: tuple[AuditStatus, ...] = ()
    """The newest first."""
    backfills: tuple[BackfillStatus, ...] = ()
    """The newest first."""
    window: WindowStatus | None = None
    gaps: dict[str, tuple[ChainRange, ...]] = field(default_factory=dict)
    """Accepted gaps by topic-partition."""
    live_generation: int | None = None
    unread: dict[str, UnreadPart] = field(default_factory=dict)
    """The parts that could not be read: audits, backfills, gaps, dedup, quarantine, generation."""


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """A stream."""

    name: str
    table: str
    generation: int
    source: str
    """`kafka` or `kinesis`."""
    dags: dict[str, str]
    """The DAG of each stage."""
    promises: tuple[PromiseStatus, ...] = ()
    topic_partitions: tuple[TopicPartitionStatus, ...] = ()
    logs_ms: int | None = None
    """When Kafka and ZooKeeper were read; older than the document while one of them does not answer."""
    tables_ms: int | None = None
    """When the tables were read."""
    trend: tuple[TrendPoint, ...] = ()
    """Oldest first."""
    produced_per_second: float | None = None
    """Messages per second that producers write, from the log end offsets of the last ten minutes."""
    archived_per_second: float | None = None
    stops: tuple[StopStatus, ...] = ()
    pauses: tuple[PauseStatus, ...] = ()
    rows: dict[str, int] = field(default_factory=dict)
    """Rows by table: main, quarantine, unique, duplicates."""
    runs: tuple[RunStatus, ...] = ()
    """The runs of the last hour, and the newest earlier run; the newest first."""
    planned_ms: int | None = None
    """When the partition run that has not ended was planned."""
    planned_run: str = ""
    """The DAG run that executes the plan; '' if it is unknown."""
    hold: HoldStatus | None = None
    ledger: LedgerStatus | None = None
    window_alert: str = ""
    details: StreamDetails | None = None

    def promise(self, name: str, subject: str = "") -> PromiseStatus | None:
        """Return a promise; None if it was not measured."""
        return next((each for each in self.promises if each.promise == name and each.subject == subject), None)


@dataclass(frozen=True, slots=True)
class DecisionStatus:
    """A recorded action: on a page, by a command, or with a form in Airflow."""

    at_ms: int
    by: str
    action: str
    stream: str
    arguments: dict[str, str]
    reason: str
    outcome: str
    command: str
    place: str = ""
    """The place of its record, which is part of the URL of its outcome page."""
    dag: str = ""
    run: str = ""
    """The DAG run that was triggered; '' if there is none."""
    run_state: str = ""
    """How the run ended: `success` or `failed`; '' while it is unknown."""
    surface: str = Surface.PAGE
    """Through which surface the person decided."""


@dataclass(frozen=True, slots=True)
class WatchStatus:
    """The findings of a watch about all streams."""

    at_ms: int
    """When the watch measured."""
    seconds: float
    """How long it took."""
    services: tuple[ServiceStatus, ...] = ()
    streams: tuple[StreamStatus, ...] = ()
    shared: tuple[PromiseStatus, ...] = ()
    """Promises that all streams share, such as those of Kafka itself."""
    brokers: tuple[BrokerStatus, ...] = ()
    """Sorted by id; while Kafka does not answer, the brokers of the previous document."""
    incidents: tuple[IncidentStatus, ...] = ()
    replays: tuple[ReplayStatus, ...] = ()
    replays_ms: int | None = None
    """When the replay requests were read; None: replay is not configured, or its database was never read."""
    usage: tuple[UsageStatus, ...] = ()
    usage_ms: int | None = None
    actions: tuple[DecisionStatus, ...] = ()
    """The newest first."""
    broken: dict[str, str] = field(default_factory=dict)
    """Streams that are left out, since their config has errors."""

    def stream(self, name: str) -> StreamStatus | None:
        """Return a stream; None if it is not in the document."""
        return next((each for each in self.streams if each.name == name), None)

    def content(self) -> bytes:
        """Return the document that `parse` reads."""
        return _DOCUMENT.write({"status": self})

    @classmethod
    def parse(cls, content: bytes, where: str) -> WatchStatus:
        """Return the status of a document. Raises `DocumentTooNew` or `DocumentDamaged`."""
        return _DOCUMENT.parse(where, content, lambda fields: _adapter().validate_python(fields["status"]))


@cache
def _adapter() -> TypeAdapter[WatchStatus]:
    return TypeAdapter(WatchStatus)
