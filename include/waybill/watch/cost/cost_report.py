"""The figures of a stream in a period: usage by day, what is stored now, and upload limits with their predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any

from waybill.base.metering import Tally, divided
from waybill.config import names
from waybill.config.models import Config, Stream
from waybill.config.names import BackupName, TopicPartition
from waybill.services.coordination import ALL_STREAMS, DailyUsage, UsageStore
from waybill.services.store import Store
from waybill.tables.iceberg import load_dedup_tables, load_tables
from waybill.tables.staging.services import StagingServices
from waybill.watch.cost.prediction import CostedObject, ObjectLimits, Prediction, predict, recut

_DAY = timedelta(days=1)
_SECONDS_PER_DAY = 86_400
_MILLION = 1_000_000


class RequestKind(StrEnum):
    """Kinds of requests, as S3's price list has them."""

    WRITE = "write"
    """Requests that create objects, with each part of a multipart upload."""
    LIST = "list"
    READ = "read"
    DELETE = "delete"
    """Includes aborted uploads. Amazon charges nothing for these."""


_WRITES = frozenset({"PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "CopyObject"})


def kind_of(operation: str) -> RequestKind:
    """Return the kind of an S3 operation."""
    if operation in _WRITES:
        return RequestKind.WRITE
    if operation.startswith("List"):
        return RequestKind.LIST
    return RequestKind.DELETE if operation.startswith(("Delete", "Abort")) else RequestKind.READ


@dataclass(frozen=True, slots=True)
class CostPeriod:
    """Days of UTC, both included."""

    first: date
    last: date

    @property
    def first_ms(self) -> int:
        """Epoch ms."""
        return int(datetime(self.first.year, self.first.month, self.first.day, tzinfo=UTC).timestamp() * 1000)

    @property
    def end_ms(self) -> int:
        """The end of the last day, epoch ms."""
        return self.first_ms + (self.last - self.first + _DAY) // _DAY * _SECONDS_PER_DAY * 1000


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The objects of the period, as other upload limits would have made them."""

    limits: Mapping[str, ObjectLimits]
    """By topic."""
    predicted: Prediction


@dataclass(frozen=True, slots=True)
class CostReport:
    """What a stream has used in a period, what it has stored, and what upload limits change."""

    stream: str
    period: CostPeriod
    by_day: Mapping[date, Tally]
    """Only days that have usage."""
    days: float
    """The number of days with usage. Today counts as a fraction of a day."""
    counted_writes: int
    """Counted requests of ingest that create objects."""
    stored_bytes: Mapping[str, int]
    """Bytes that are stored now, by `archive` or role of a table."""
    present: WhatIf
    other: WhatIf | None
    """The prediction for other limits; None if no limits were given."""

    @property
    def total(self) -> Tally:
        """The sum over all days."""
        return Tally.sum(self.by_day.values())

    def per_day(self, figure: float) -> float | None:
        """Return a figure of the period, divided by the number of days; None if there are no days."""
        return figure / self.days if self.days else None

    def per_million(self, figure: float) -> float | None:
        """Return a figure of the period for each million archived messages; None if there are no messages."""
        messages = self.total.messages
        return figure * _MILLION / messages if messages else None

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        total = self.total
        return {
            "stream": self.stream,
            "since": self.period.first.isoformat(),
            "until": self.period.last.isoformat(),
            "days": round(self.days, 4),
            "by_day": {day.isoformat(): _figures(tally) for day, tally in self.by_day.items()},
            "total": _figures(total),
            "per_day": {name: self.per_day(figure) for name, figure in _flat(total).items()},
            "per_million_messages": {name: self.per_million(figure) for name, figure in _flat(total).items()},
            "stored_bytes": dict(self.stored_bytes),
            "upload": {
                "counted_writes": self.counted_writes,
                "present": _what_if(self.present),
                "other": None if self.other is None else _what_if(self.other),
            },
        }


def _figures(tally: Tally) -> dict[str, Any]:
    return {
        "messages": tally.messages,
        "requests": {name: count for name, count in sorted(tally.requests.items()) if count},
        "sent_bytes": tally.sent_bytes,
        "received_bytes": tally.received_bytes,
        "cpu_seconds": {step: round(seconds, 3) for step, seconds in sorted(tally.cpu_seconds.items())},
    }


def _flat(tally: Tally) -> dict[str, float]:
    return {
        "requests": sum(tally.requests.values()),
        "sent_bytes": tally.sent_bytes,
        "received_bytes": tally.received_bytes,
        "cpu_seconds": sum(tally.cpu_seconds.values()),
    }


def _what_if(found: WhatIf) -> dict[str, Any]:
    limits = {
        topic: {"max_bytes": each.max_bytes, "max_age_seconds": each.max_age_ms / 1000}
        for topic, each in found.limits.items()
    }
    return {"limits": limits, "objects": found.predicted.objects, "writes": found.predicted.requests}


# --- reading ----------------------------------------------------------------------------------------------------------


def read_cost(
    config: Config,
    name: str,
    services: StagingServices,
    usage: UsageStore,
    period: CostPeriod,
    now: datetime,
    *,
    max_bytes: int | None = None,
    max_age: timedelta | None = None,
) -> CostReport:
    """Return what stream `name` has cost in a period. `max_bytes` and `max_age` add a prediction for these limits.

    The function lists the archive of the stream (one request for each 1,000 objects) and loads the tables.

    Raises `ConfigError`, `DocumentTooNew`, `DocumentDamaged`, `CoordinationUnavailable`, `StoreUnavailable` or
    `CatalogUnavailable`.
    """
    stream = config.stream(name)
    used = _of_stream(usage.read(period.first, period.last), name, list(config.streams))
    by_day: dict[date, Tally] = {}
    for each in used:
        by_day.setdefault(each.day, Tally()).add(each.tally)
    chains = _list_chains(services.store, stream, services.archived_topics(stream))
    present = {tp.topic: _limits(stream, tp.topic) for tp in chains}
    other = {
        topic: ObjectLimits(
            limits.max_bytes if max_bytes is None else max_bytes,
            limits.max_age_ms if max_age is None else int(max_age.total_seconds() * 1000),
        )
        for topic, limits in present.items()
    }
    ingest = Tally.sum(each.tally for each in used if each.process == names.Stage.INGEST)
    return CostReport(
        stream=name,
        period=period,
        by_day=by_day,
        days=sum(_part_of_day(day, now) for day in by_day),
        counted_writes=sum(
            count for operation, count in ingest.requests.items() if kind_of(operation) is RequestKind.WRITE
        ),
        stored_bytes={
            "archive": sum(piece.size_bytes for pieces in chains.values() for piece in pieces),
            **_table_bytes(services, stream),
        },
        present=WhatIf(present, _predict(stream, chains.values(), period)),
        other=None
        if max_bytes is None and max_age is None
        else WhatIf(
            other,
            _predict(
                stream,
                [list(recut(pieces, present[tp.topic], other[tp.topic])) for tp, pieces in chains.items()],
                period,
            ),
        ),
    )


def _of_stream(usage: Iterable[DailyUsage], name: str, streams: Sequence[str]) -> list[DailyUsage]:
    """Return the usage of a stream, with an equal share of the usage of processes that work for all streams."""
    found = []
    for each in usage:
        if each.stream == name:
            found.append(each)
        elif each.stream == ALL_STREAMS:
            part = divided(each.tally, dict.fromkeys(streams, 1.0))[name]
            found.append(DailyUsage(each.day, each.process, name, part))
    return found


def _part_of_day(day: date, now: datetime) -> float:
    passed = (now - datetime(day.year, day.month, day.day, tzinfo=UTC)) / _DAY
    return min(1.0, max(passed, 1 / _SECONDS_PER_DAY))


def _limits(stream: Stream, topic: str) -> ObjectLimits:
    policy = stream.upload_for(topic)
    return ObjectLimits(int(policy.max_bytes), int(policy.max_age.total_seconds() * 1000))


def _list_chains(store: Store, stream: Stream, topics: Iterable[str]) -> dict[TopicPartition, list[CostedObject]]:
    """Return size and time of the objects of each chain of the stream's generation, in order."""
    chains: dict[TopicPartition, list[CostedObject]] = {}
    for topic in topics:
        for entry in store.list_objects(names.backup_prefix(store.prefix, topic)):
            try:
                name = BackupName.parse(entry.key)
            except ValueError:
                continue
            if name.generation == stream.generation:
                piece = CostedObject(int(entry.modified.timestamp() * 1000), entry.size_bytes)
                chains.setdefault(TopicPartition(topic, name.partition), []).append(piece)
    return chains


def _predict(stream: Stream, chains: Iterable[Sequence[CostedObject]], period: CostPeriod) -> Prediction:
    is_indexed = stream.format.extension.is_indexed
    found = (predict(pieces, period.first_ms, period.end_ms, is_indexed=is_indexed) for pieces in chains)
    return sum(found, Prediction())


def _table_bytes(services: StagingServices, stream: Stream) -> dict[str, int]:
    """Return the sizes of the data files of the present snapshots, by table; nothing for a table that does not exist.

    Files of branches, and of older snapshots that maintenance has not removed yet, are not counted.
    """
    main = load_tables(services.catalog, stream)
    dedup = None if stream.dedup is None else load_dedup_tables(services.catalog, stream)
    tables = {} if main is None else {"table": main.main, "quarantine": main.quarantine}
    if dedup is not None:
        tables |= {"unique": dedup.unique, "duplicates": dedup.duplicates}
    found = {}
    for role, table in tables.items():
        snapshot = table.metadata.current_snapshot()
        summary = None if snapshot is None else snapshot.summary
        found[role] = int((summary.additional_properties.get("total-files-size") or 0) if summary else 0)
    return found
