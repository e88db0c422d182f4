"""One or two values of each stored document, with the way to write and to read it, for `test_stored_documents.py`."""

# ruff: noqa: ARG002 - what stands in for a store or a session has its signatures
from __future__ import annotations

import gzip
import io
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pyarrow.parquet as pq

from waybill.archive.chain.chain import ChainStart
from waybill.archive.chain.gaps import Gap, GapKind
from waybill.archive.chain.object_index import INDEX_SCHEMA, ObjectFigures, ObjectIndex, ObjectIndexWriter
from waybill.archive.chain.spans import ArchiveFault, Span
from waybill.archive.chain.topic_settings import TopicSettings
from waybill.archive.ingest.kinesis import shard_starts
from waybill.archive.restore.restore_plan import PartitionPlan, RestorePlan
from waybill.base.metering import Tally
from waybill.config.models import JsonParser, ParseSettings
from waybill.config.models.enums import Severity
from waybill.config.models.promises import PromiseSeverity
from waybill.config.names import Extension, TopicPartition
from waybill.records.batches import framing
from waybill.records.batches.compression import compress
from waybill.records.shards.checkpoint import Checkpoint, ShardPosition
from waybill.records.shards.checkpoint_batch import CoveredShard, SlotState, checkpoint_batch, read_checkpoint_batch
from waybill.records.shards.slot_map import Assignment, SlotMap, StreamOrigin
from waybill.replay.republish.records import Abandoned, Republished
from waybill.replay.republish.truncations import EpochRun
from waybill.replay.requests import stored
from waybill.replay.requests.request import Requested
from waybill.replay.requests.targets import KafkaTarget, S3Target, WebhookTarget
from waybill.services.coordination import day_marks, group_problems, pauses, shard_map, usage
from waybill.services.coordination.day_marks import DayMark, MarkedOffset
from waybill.services.coordination.nodes import CommittedOffset, OffsetCounts, Stop
from waybill.tables.audit.counts import AuditCounts
from waybill.tables.audit.decisions import DecisionKind, HoldDecision
from waybill.tables.audit.results import Audit, CheckResult
from waybill.tables.backfill import diff, events
from waybill.tables.backfill.build import Built
from waybill.tables.backfill.compare import Comparison
from waybill.tables.backfill.events import BackfillEvent
from waybill.tables.backfill.generation_request import BackfillSource, BuiltGeneration, GenerationRequest
from waybill.tables.backfill.ranges import OffsetRanges
from waybill.tables.backfill.request import BackfillRequest
from waybill.tables.backfill.results import TaskRecord
from waybill.tables.backfill.states import BackfillAction
from waybill.tables.dedup.appends import TABLE_START, AppendedFile, TablePosition
from waybill.tables.dedup.commit import StagedSweep, find_staged_sweep, record_staged_sweep
from waybill.tables.dedup.index.manifest import IndexIdentity, Manifest
from waybill.tables.dedup.index.sorted_runs import SortedRun
from waybill.tables.dedup.sweep_plan import SweepPlan
from waybill.tables.iceberg import dedup as dedup_tables
from waybill.tables.iceberg import progress
from waybill.tables.iceberg.dedup import NO_HORIZON_MS, FirstSweepStart, SweepPosition, SweepState
from waybill.tables.partition.files_sink.hour_state import SuccessMarker
from waybill.tables.partition.lateness import Lateness
from waybill.tables.partition.partition_plan import Plan
from waybill.tables.partition.staged import Staged, find_staged, record_staged
from waybill.tables.partition.statistics import ReasonCount, ReasonCounts, RunStatistics
from waybill.tables.quarantine.staged import StagedRetry
from waybill.tables.spark.group_results import GroupResults, StreamOutcome, StreamResult
from waybill.watch.incidents.book_document import StoredBook
from waybill.watch.incidents.incident import (
    Acknowledgement,
    Incident,
    IncidentBook,
    Notification,
    NotificationKind,
)
from waybill.watch.kafka_cluster import throttle
from waybill.watch.kafka_cluster.isr_history import Episode, IsrHistory, ReplicaState
from waybill.watch.kafka_cluster.readings import SlowReadings
from waybill.watch.kafka_cluster.what_if import TopicRules
from waybill.watch.ledger.results import LedgerResult
from waybill.watch.promises import action_log
from waybill.watch.promises.action_log import ActionOutcome, ActionRecord
from waybill.watch.promises.kafka_figures import KafkaMemory
from waybill.watch.promises.samples import LogDrop, OffsetSample, Samples
from waybill.watch.promises.table_figures import Published, TableState
from waybill.watch.promises.table_states import parse_states, states_content
from waybill.watch.promises.volumes import HourlyVolumes, Volumes

KEY = "p/documents/key.json"
TP, OTHER = TopicPartition("orders", 1), TopicPartition("plans", 0)
AT = datetime(2026, 1, 31, 12, 30, 1, 250_000, tzinfo=UTC)
MS = 1_700_000_000_123


@dataclass(frozen=True)
class Sample:
    """A stored document: values, and how each is written and read. `unpack` takes the JSON out of its packing."""

    values: Mapping[str, Any]
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    pack: Callable[[bytes], bytes] = bytes
    unpack: Callable[[bytes], bytes] = bytes


# --- what stands in for a store and a table ---------------------------------------------------------------------------


@dataclass
class MemoryStore:
    """Objects in memory, as far as stored documents need a store."""

    contents: dict[str, bytes] = field(default_factory=dict)
    prefix: str = "p/"
    bucket: str = "bucket"

    def read(self, key: str) -> bytes:
        return self.contents[key]

    def read_if_exists(self, key: str) -> bytes | None:
        return self.contents.get(key)

    def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.contents if key.startswith(prefix))

    def replace(self, key: str, content: bytes, content_type: str = "") -> None:
        self.contents[key] = content

    def create_or_read_existing(self, key: str, content: bytes) -> bytes | None:
        existing = self.contents.get(key)
        self.contents.setdefault(key, content)
        return existing

    def create_if_absent(self, key: str, content: bytes) -> None:
        self.contents.setdefault(key, content)


class OneObject(MemoryStore):
    """A store whose every key has one content."""

    def __init__(self, content: bytes, key: str = KEY) -> None:
        super().__init__({key: content})
        self.content = content

    def read(self, key: str) -> bytes:
        return self.content

    def read_if_exists(self, key: str) -> bytes | None:
        return self.content

    def keys(self, prefix: str) -> list[str]:
        return list(self.contents)


def _stored(write: Callable[[Any, Any], object]) -> Callable[[Any], bytes]:
    """Return a function that returns the one object which `write(store, value)` stores."""

    def written(value: Any) -> bytes:
        store = MemoryStore()
        write(store, value)
        [content] = store.contents.values()
        return content

    return written


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, 1, mtime=0)


def _without_files(module: str, read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a reader that does not look for the data files that a document lists."""

    def reading(data: bytes) -> Any:
        with patch(f"{module}.staged_files", lambda *_: []):
            return read(data)

    return reading


def _metadata(**properties: str) -> Any:
    """Return a table's metadata with one snapshot that has these properties."""
    summary = SimpleNamespace(additional_properties=properties)
    snapshot = SimpleNamespace(summary=summary, snapshot_id=1, parent_snapshot_id=None, sequence_number=1)
    return SimpleNamespace(
        current_snapshot=lambda: snapshot, snapshot_by_id=lambda _: snapshot, snapshots=[snapshot], refs={}
    )


class _Session:
    """A ZooKeeper session with one node."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = content

    def get(self, path: str) -> tuple[bytes, int]:
        return self.content, 1

    def put(self, path: str, content: bytes, doing: str) -> None:
        self.content = content

    def write(self, path: str, content: bytes, version: int) -> int:
        self.content = content
        return 2


def _node(write: Callable[[Any, Any], object]) -> Callable[[Any], bytes]:
    def written(value: Any) -> bytes:
        session = _Session()
        write(session, value)
        return session.content

    return written


# --- packings of their own --------------------------------------------------------------------------------------------


def _in_batch(content: bytes) -> bytes:
    empty = framing.read_header(framing.empty_batch(5, 6, leader_epoch=-1), 0, "")
    header = empty._replace(attributes=int(framing.Codec.GZIP))
    return framing.pack_batch(header, compress(framing.Codec.GZIP, content))


def _of_batch(batch: bytes) -> bytes:
    return gzip.decompress(batch[framing.HEADER_BYTES :])


def _read_batch(batch: bytes) -> Any:
    frame = framing.Frame(0, framing.read_header(batch, 0, KEY), memoryview(batch))
    return read_checkpoint_batch(frame, KEY)


def _in_index(content: bytes) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, INDEX_SCHEMA) as writer:
        writer.write_table(INDEX_SCHEMA.empty_table())
        writer.add_key_value_metadata({b"waybill": content})
    return sink.getvalue()


def _of_index(data: bytes) -> bytes:
    return bytes(pq.ParquetFile(io.BytesIO(data)).metadata.metadata[b"waybill"])


def _without_token(data: bytes) -> bytes:
    """Return the record of an action without what chance has given it."""
    return re.sub(rb'"request":"[0-9a-f]{16}"', b'"request":"0"', data)


# --- values -----------------------------------------------------------------------------------------------------------

_PARSER = JsonParser.model_validate({"event_time": {"field": "at"}, "message_id": "id"})
_READING = ParseSettings(parser=_PARSER)
_FAULTS = {TP: ArchiveFault(TP, 7, "it is damaged")}
_SPAN = Span(TP, "p/orders/1.kafka", 5, 9, 1024)
_PLAN = Plan(KEY, "orders", 2, AT, _READING, {TP: 5, OTHER: 0}, {TP: 9, OTHER: 3}, ((_SPAN,), ()), _FAULTS)
_EMPTY_PLAN = Plan(KEY, "orders", 1, AT, _READING, {}, {TP: 9}, ())
_CHECK = CheckResult("expect_ü", {"column": "a", "most": 1.5}, Severity.WARNING, False, "[1]", 3, ("orders/1@5: ü",))
_AUDIT = Audit("plan", "run", AT, (_CHECK, CheckResult("rows", {}, Severity.CRITICAL, True)), "docs/1.html", 2)
_DECISION = HoldDecision(DecisionKind.RELEASED, "ada", "checked, ü", AT)
_ENTRIES = [["table/data/a.parquet", [1, None], True], ["table/data/b.parquet", [], False]]
_RUN = SortedRun(3, 1, 4, 1000, 5, 9, "index/runs/a.parquet", 20_000, 500, 7, "index/runs/a.fuse16", 2000, 8)
_BEGINNING = FirstSweepStart(since_ms=5, snapshot=7, sequence=1, committed_ms=9, rows=3, progress={TP: 4})
_SWEEP = SweepPlan(
    KEY, "orders", 1, AT, "uuid", TablePosition(4, 1), TablePosition(5, 2), (AppendedFile("a.parquet", 10, 2),),
    (TP, OTHER), {TP: MS}, 3_600_000, 77, ("id", "key"), "source", 16, _BEGINNING, "rebuild-1",
)  # fmt: skip
_FIRST_SWEEP = SweepPlan(
    KEY, "orders", 1, AT, "uuid", TABLE_START, TablePosition(5, 2), (), (), {}, 1, NO_HORIZON_MS, ("id",), None, 16
)
_RANGES = OffsetRanges({TP: (5, 9), OTHER: (0, 3)})
_COMPARISON = Comparison(
    5, Counter(added=2), Counter(a=1), {"added": ["orders/1@5"]}, {"2026-01-31 12:00": Counter(added=2)}
)
_COUNTS = AuditCounts(9, 1, 2, 3, 4, 5, 6, 7, "orders/1@7", {TP: ((5, 8),)})
_STATISTICS = RunStatistics(
    Lateness((1, 2, *[0] * 11), 3, 4), {TP: MS}, ReasonCounts({"kind ü": ReasonCount(3, "why")}), _COUNTS
)
_CHECKPOINT = Checkpoint({"shard-1": ShardPosition.trim_horizon().after("5").caught_up(MS)})
_ORIGIN = StreamOrigin("arn", MS, frozenset({"shard-1"}), ShardPosition.at_timestamp(MS), "kcl by ada")
_ASSIGNMENT = Assignment("shard-1", 3, ShardPosition.trim_horizon(), ("shard-0",), "arn", MS)
_OFFSET_COUNTS = OffsetCounts(1, 2, 3, 4, 5, 6)
_COMMITTED = CommittedOffset(
    9, "id", 3, 1024, 4, MS, 1, 5, "by ada", Extension.TEXT, _OFFSET_COUNTS, _CHECKPOINT, version=1
)
_INCIDENT = Incident(
    "id-1", "orders", "archive_lag", "", PromiseSeverity.CRITICAL, MS, MS, "5 s", "1 s", "ü", "waybill x", MS, MS,
    "gone", Acknowledgement("ada", MS, "mine"), MS, True, ("mail",), "https://example.org",
)  # fmt: skip
_NOTIFICATION = Notification("n-1", "id-1", "mail", NotificationKind.OPENED, MS, 2, MS, "refused")
_FEW = Incident("id-2", "orders", "table_lag", "t", PromiseSeverity.WARNING, MS, MS, "", "", "", "")
_RESULT = StreamResult("orders", StreamOutcome.FAILED, True, 5, 1.25, "Error", "ü", True, ("a",), ("b",), {"rows": 5})
_TABLE = SimpleNamespace(metadata=SimpleNamespace(table_uuid="uuid"), name=lambda: ("orders",), io=None)
_TABLES = cast("Any", SimpleNamespace(main=_TABLE, quarantine=_TABLE, unique=_TABLE, duplicates=_TABLE))


def _staged_sweep(plan: SweepPlan) -> StagedSweep:
    horizon = 77 if plan is _SWEEP else NO_HORIZON_MS
    state = SweepState(SweepPosition("uuid", 5, 2), dict(plan.watermarks), horizon, plan.beginning)
    return StagedSweep("run", [], [], state, (_RUN,) if plan is _SWEEP else (), 4)


_STAGED = Staged("run", [], [], {TP: 9}, _FAULTS, {"waybill.rows": "5"})
_STATE = SweepState(SweepPosition("uuid", 5, 2), {TP: MS, OTHER: 3}, 77, _BEGINNING)
_SWEPT, _WATERMARKS = dedup_tables.SWEPT_PROPERTY, dedup_tables.SWEEP_WATERMARKS_PROPERTY
_BEGINNING_PROPERTY, _HORIZON = dedup_tables.SWEEP_BEGINNING_PROPERTY, dedup_tables.SWEEP_HORIZON_PROPERTY


def _sweep_property(name: str) -> Sample:
    """Return one of the documents in which a unique table keeps its sweep state."""
    all_of_them = dedup_tables.sweep_properties(_STATE)
    return Sample(
        {"full": _STATE},
        lambda state: dedup_tables.sweep_properties(state)[name].encode(),
        lambda data: dedup_tables.read_sweep_state(_metadata(**{**all_of_them, name: data.decode()}), "t"),
    )


def _text(write: Callable[[Any], str]) -> Callable[[Any], bytes]:
    return lambda value: write(value).encode()


def _read_table_property(name: str, read: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    return lambda data: read(_metadata(**{progress.PROGRESS_PROPERTY: "{}", name: data.decode()}))


_THROTTLE = ("orders", (3, 1), 1_000_000)


def _write_throttle(store: Any, value: Any) -> None:
    topic, brokers, rate = value if isinstance(value, tuple) else (value.topic, value.brokers, value.rate_bytes)
    throttle.Throttle._record(cast("Any", SimpleNamespace(_store=store)), topic, brokers, rate)


SAMPLES: dict[str, Sample] = {
    # --- the archive
    "chain_start": Sample(
        {"full": ChainStart(100, "an id", 4, Extension.KAFKA)},
        ChainStart.to_json,
        lambda d: ChainStart.from_json(KEY, d),
    ),
    "gap": Sample(
        {
            "full": Gap(TP, 1, 5, 9, GapKind.RETENTION, "why ü", "ada", MS, {"lost": 4, "text": "x"}),
        },
        Gap.to_json,
        lambda d: Gap.from_json(Gap(TP, 1, 5, 9, GapKind.RETENTION, "", "", 0).name.key("p/"), d),
    ),
    "topic_settings": Sample(
        {"full": TopicSettings("orders", "id", 3, {"b": "1", "a": "ü"}), "few": TopicSettings("orders", "", 1, {})},
        TopicSettings.to_json,
        lambda d: TopicSettings.from_json(KEY, d),
    ),
    "stream_origin": Sample(
        {"full": _ORIGIN, "few": StreamOrigin("arn", MS, frozenset(), ShardPosition.trim_horizon())},
        _stored(lambda store, value: shard_starts.record_stream_origin(store, "orders", 1, value)),
        lambda d: shard_starts.find_stream_origin(cast("Any", OneObject(d)), "orders", 1),
    ),
    "shard_start": Sample(
        {"full": _ASSIGNMENT, "few": Assignment("shard-1", 0, ShardPosition.at_sequence("7"))},
        _stored(lambda store, value: shard_starts.record_shard_start(store, "orders", 1, value)),
        lambda d: shard_starts.find_shard_start(cast("Any", OneObject(d)), "orders", 1, "shard-1"),
    ),
    "checkpoint_batch": Sample(
        {"full": SlotState(_CHECKPOINT, {"shard-1": CoveredShard("", "5")}), "few": SlotState(Checkpoint({}), {})},
        lambda state: checkpoint_batch(5, state),
        _read_batch,
        _in_batch,
        _of_batch,
    ),
    "object_index": Sample(
        {"full": ObjectFigures(5, 9, 0, 1, 1024, "ab12", 3, MS, MS + 1, "id", "0a")},
        lambda value: ObjectIndexWriter().finish(getattr(value, "figures", value)),
        lambda d: ObjectIndex(d, KEY),
        _in_index,
        _of_index,
    ),
    "restore_plan": Sample(
        {
            "full": RestorePlan(
                "r1",
                "orders",
                1,
                "kafka",
                {"copy": "id"},
                7,
                1,
                (PartitionPlan("orders", 1, 5, 9, "copy", 3, 1024),),
                "ada",
                "why ü",
                AT,
                {"copy": {"retention.ms": None, "a": "1"}},
                ("less",),
            ),
            "few": RestorePlan("r1", "orders", 1, "kafka", {}, 7, 1, (), "ada", "why", AT),
        },
        RestorePlan.to_json,
        lambda d: RestorePlan.from_json(KEY, d),
    ),
    # --- ZooKeeper
    "committed_offset": Sample(
        {"full": _COMMITTED, "few": CommittedOffset(9, version=1)},
        CommittedOffset.to_document,
        lambda d: CommittedOffset.from_document(d, 1, KEY),
    ),
    "stop": Sample(
        {"full": Stop(TP, "RetentionGap", "lost ü", {"lost": 4}, MS)},
        Stop.to_document,
        lambda d: Stop.from_document(TP, d, KEY),
    ),
    "usage": Sample(
        {"full": {"orders": Tally(Counter(get=3), 5, 6, {"ingest": 1.25}, 7), "": Tally()}},
        lambda tallies: usage._DOCUMENT.write(
            {"streams": {stream: each.to_fields() for stream, each in sorted(tallies.items())}}
        ),
        lambda d: usage._parse(d, KEY),
    ),
    "pauses": Sample(
        {
            "full": pauses.StreamPauses(
                (
                    pauses.Pause(
                        pauses.PauseAction.PAUSE,
                        frozenset({pauses.Stage.INGEST, pauses.Stage.DEDUP}),
                        "ada",
                        MS,
                        "why",
                    ),
                ),
                1,
            )
        },
        _node(
            lambda session, value: (
                pauses.StreamPauses(value.decisions[:-1], 1).decide(session, "/w", "orders", value.decisions[-1])
                if value.decisions
                else session.put("", b"", "")
            )
        ),
        lambda d: pauses._parse((d, 1), KEY),
    ),
    "group_problems": Sample(
        {
            "full": group_problems.GroupProblems(
                "/w",
                "g",
                {("orders", "Gap"): group_problems.GroupProblem("orders", "Gap", "ü", MS)},
            )
        },
        _node(lambda session, value: value.write(session)),
        lambda d: group_problems.GroupProblems.read(cast("Any", _Session(d)), "/w", "g"),
    ),
    "slot_map": Sample(
        {"full": SlotMap(_ORIGIN, {"shard-1": _ASSIGNMENT})},
        _node(
            lambda session, value: shard_map.write_slot_map_copy(
                session, cast("Any", SimpleNamespace(slot_map=lambda _: KEY)), "orders", value, 1
            )
        ),
        lambda d: shard_map._parse(d, KEY),
    ),
    "day_mark": Sample(
        {
            "full": DayMark(MS, {("orders", 1): {TP: MarkedOffset(5, _OFFSET_COUNTS), OTHER: MarkedOffset(7)}}),
            "few": DayMark(MS, {}),
        },
        day_marks.DayMark.content,
        lambda d: DayMark.parse(d, KEY),
        _gzip,
        gzip.decompress,
    ),
    # --- replay
    "replay_request": Sample(
        {
            "full": Requested("orders", (b"a", b"\xff"), MS, MS + 5, WebhookTarget("https://example.org/x"), 3),
            "kafka": Requested("orders", (b"a",), MS, MS + 5, KafkaTarget("kafka", "copy")),
            "s3": Requested("orders", (b"a",), MS, MS + 5, S3Target()),
        },
        Requested.to_json,
        lambda d: Requested.from_json(KEY, d),
    ),
    "replay_cursor": Sample(
        {"full": {"number": 5, "parts": [1]}},
        _text(cast("Any", stored.cursor_json)),
        lambda d: stored._read_cursor(d.decode(), KEY),
    ),
    "abandoned": Sample({"full": Abandoned("ada", "ü", MS)}, Abandoned.to_json, lambda d: Abandoned.from_json(KEY, d)),
    "republished": Sample(
        {"full": Republished(TP, 1, 0, (EpochRun(5, 9, 3),), "ada", "ü", MS, {"producer": 7})},
        Republished.to_json,
        lambda d: Republished.from_json(KEY, d),
    ),
    # --- tables: plans, records, decisions
    "partition_plan": Sample({"full": _PLAN, "few": _EMPTY_PLAN}, Plan.to_json, lambda d: Plan.from_json(KEY, d)),
    "staged": Sample(
        {"full": _STAGED},
        _stored(lambda store, value: record_staged(store, _PLAN, value)),
        _without_files(
            "waybill.tables.partition.staged", lambda d: find_staged(cast("Any", OneObject(d)), _PLAN, _TABLES)
        ),
    ),
    "audit": Sample(
        {"full": _AUDIT, "few": Audit("plan", "run", AT, ())}, Audit.to_json, lambda d: Audit.from_json(KEY, d)
    ),
    "audit_counts": Sample(
        {"full": _COUNTS, "few": AuditCounts()}, _text(AuditCounts.to_text), lambda d: AuditCounts.from_text(d.decode())
    ),
    "hold_decision": Sample({"full": _DECISION}, HoldDecision.to_json, lambda d: HoldDecision.from_json(KEY, d)),
    "reason_counts": Sample(
        {"full": _STATISTICS.reasons, "few": ReasonCounts()},
        _text(ReasonCounts.to_text),
        lambda d: ReasonCounts.from_text(d.decode()),
    ),
    "lateness": Sample(
        {"full": _STATISTICS.lateness, "few": Lateness()},
        _text(Lateness.to_text),
        lambda d: Lateness.from_text(d.decode(), KEY),
    ),
    "success_marker": Sample(
        {"full": SuccessMarker(1, 2, 3, 4)}, SuccessMarker.to_json, lambda d: SuccessMarker.parse(KEY, d)
    ),
    "group_results": Sample(
        {
            "full": GroupResults("run", ("orders", "b"), True, {"orders": _RESULT}),
            "few": GroupResults("run", ("orders",)),
        },
        GroupResults.to_json,
        lambda d: GroupResults.load(cast("Any", OneObject(d)), "g", "partition", "run"),
    ),
    "staged_retry": Sample(
        {
            "full": StagedRetry(
                KEY,
                1,
                "run",
                AT,
                _READING,
                {"reason": "x"},
                5,
                {TP: (5, 9)},
                tuple(_ENTRIES),
                "offsets",
                _AUDIT,
                _DECISION,
            ),
            "few": StagedRetry(KEY, 1, "run", AT, _READING, {}, 0, {}, (), "offsets"),
        },
        StagedRetry.to_json,
        lambda d: StagedRetry.from_json(KEY, d),
    ),
    # --- tables: properties of snapshots
    "progress": Sample(
        {"full": {TP: 5, OTHER: 9}, "few": {}},
        _text(progress.progress_text),
        _read_table_property(progress.PROGRESS_PROPERTY, lambda metadata: progress.read_progress(metadata, "t")),
    ),
    "blocked": Sample(
        {"full": progress.BlockedPartitions({TP: 5}, 2)},
        _text(progress.blocked_partitions_text),
        _read_table_property(progress.BLOCKED_PARTITIONS_PROPERTY, progress.read_blocked_partitions),
    ),
    "watermarks": Sample(
        {"full": {TP: MS, OTHER: 9}, "few": {}},
        _text(progress.watermarks_text),
        lambda d: progress.parse_watermarks(d.decode(), KEY),
    ),
    "sweep_position": _sweep_property(_SWEPT),
    "sweep_watermarks": _sweep_property(_WATERMARKS),
    "sweep_beginning": _sweep_property(_BEGINNING_PROPERTY),
    # --- dedup
    "sweep_plan": Sample(
        {"full": _SWEEP, "first": _FIRST_SWEEP}, SweepPlan.to_json, lambda d: SweepPlan.from_json(KEY, d)
    ),
    "staged_sweep": Sample(
        {"full": _staged_sweep(_SWEEP)},
        _stored(lambda store, value: record_staged_sweep(store, _SWEEP, value)),
        _without_files(
            "waybill.tables.dedup.commit", lambda d: find_staged_sweep(cast("Any", OneObject(d)), _SWEEP, _TABLES)
        ),
    ),
    "staged_first_sweep": Sample(
        {"full": _staged_sweep(_FIRST_SWEEP)},
        _stored(lambda store, value: record_staged_sweep(store, _FIRST_SWEEP, value)),
        _without_files(
            "waybill.tables.dedup.commit", lambda d: find_staged_sweep(cast("Any", OneObject(d)), _FIRST_SWEEP, _TABLES)
        ),
    ),
    "index_manifest": Sample(
        {
            "full": Manifest(
                identity=IndexIdentity("uuid", ("id",), 16),
                covers=4,
                covers_snapshot=7,
                horizon_ms=77,
                runs=(_RUN,),
                version=3,
            )
        },
        lambda value: value.to_json("index/"),
        lambda d: Manifest.from_json("index/", 3, d),
    ),
    # --- backfill
    "backfill_request": Sample(
        {
            "full": BackfillRequest("b1", "ada", "ü", "token", "uuid", 5, _RANGES, frozenset({"a", "b"}), _PLAN),
            "few": BackfillRequest("b1", "ada", "", "", "uuid", None, OffsetRanges({}), frozenset(), _EMPTY_PLAN),
        },
        BackfillRequest.to_json,
        lambda d: BackfillRequest.from_json(KEY, d),
    ),
    "backfill_task": Sample(
        {"full": TaskRecord(1, "run", _ENTRIES, [], 9, 1, 1.23456, _STATISTICS)},
        TaskRecord.to_json,
        lambda d: TaskRecord.from_json(KEY, d),
    ),
    "backfill_built": Sample({"full": Built(1, 2, 3, 4)}, Built.to_json, lambda d: Built.from_json(KEY, d)),
    "backfill_event": Sample(
        {
            "full": BackfillEvent("b1", BackfillAction.UNDO, "ada", "ü", AT, 3, False),
            "few": BackfillEvent("b1", BackfillAction.PROMOTE, "ada", "", AT, 1),
        },
        BackfillEvent.to_json,
        lambda d: BackfillEvent.from_json(KEY, d),
    ),
    "backfill_claim": Sample(
        {"full": BackfillEvent("b1", BackfillAction.UNDO, "ada", "ü", AT, 3, False)},
        lambda value: events._CLAIM.write(value.to_fields()),
        lambda d: events.read_claim(KEY, d),
    ),
    "backfill_diff": Sample(
        {"full": _COMPARISON, "few": Comparison()},
        _stored(
            lambda store, value: (
                diff._store(
                    store,
                    cast("Any", SimpleNamespace(key="k")),
                    cast("Any", SimpleNamespace(read_bytes=bytes)),
                    getattr(value, "comparison", value),
                )
                or store.contents.pop("k.parquet")
            )
        ),
        lambda d: diff.find_diff(
            cast("Any", OneObject(d)), cast("Any", SimpleNamespace(stream="orders", id="20261122_7f3a"))
        ),
    ),
    "generation_request": Sample(
        {
            "full": GenerationRequest(
                "b1", "orders", 2, 1, "ada", "ü", "token", AT, "uuid", BackfillSource.KAFKA, _RANGES, OffsetRanges({})
            )
        },
        GenerationRequest.to_json,
        lambda d: GenerationRequest.from_json(KEY, d),
    ),
    "generation_built": Sample(
        {"full": BuiltGeneration(1, 2, 3, 4, 5, 6), "few": BuiltGeneration(None, None, None, None, 0, 0)},
        BuiltGeneration.to_json,
        lambda d: BuiltGeneration.from_json(KEY, d),
    ),
    # --- the watch
    "incidents": Sample(
        {
            "full": StoredBook(IncidentBook((_INCIDENT, _FEW), (_NOTIFICATION,), 2, "refused"), 7),
            "few": StoredBook(IncidentBook()),
        },
        StoredBook.content,
        lambda d: StoredBook.parse(d, KEY),
    ),
    "throttle": Sample(
        {"full": _THROTTLE},
        _stored(_write_throttle),
        lambda d: throttle._read_records(cast("Any", OneObject(d)))[0],
    ),
    "ledger_result": Sample(
        {"full": LedgerResult(MS, 2, ("5 lost",), {"log": 5}), "few": LedgerResult(MS, 1)},
        _stored(lambda store, value: value.write(store, "orders")),
        lambda d: LedgerResult.read(cast("Any", OneObject(d)), "orders"),
    ),
    "action_outcome": Sample(
        {"full": ActionOutcome(True, "done ü", "/dags/x", "x", "run"), "few": ActionOutcome(False, "refused")},
        _stored(
            lambda store, value: action_log.record_outcome(
                store, cast("Any", SimpleNamespace(form_ms=MS, id="0" * 32)), value
            )
        ),
        lambda d: action_log._outcome(KEY, d),
    ),
    "kafka_memory": Sample(
        {
            "full": KafkaMemory(
                IsrHistory(
                    {ReplicaState.OFFLINE: {TP: MS}}, (Episode(ReplicaState.UNDER_MIN_ISR, "orders", 2, MS, MS + 1),)
                ),
                {"group": (5, MS)},
                SlowReadings(MS, {"orders": TopicRules(2, True)}, (), {TP: 5}, {TP: 7}, True, ("describe",)),
                {"1": MS},
            ),
            "few": KafkaMemory(),
        },
        KafkaMemory.content,
        KafkaMemory.parse,
        _gzip,
        gzip.decompress,
    ),
    "watch_samples": Sample(
        {
            "full": Samples(
                ((MS, {("orders", TP): OffsetSample(1, 9, 5)}),),
                (LogDrop(("orders", TP), MS, 9, 5),),
                {("orders", OTHER): (MS, OffsetSample(1, 9, 5))},
            ),
            "few": Samples(),
        },
        Samples.content,
        Samples.parse,
        _gzip,
        gzip.decompress,
    ),
    "watch_volumes": Sample(
        {"full": Volumes({"orders": HourlyVolumes(5, 100, 2, {3: 7, 5: 9})}), "few": Volumes()},
        Volumes.content,
        Volumes.parse,
        _gzip,
        gzip.decompress,
    ),
    "table_states": Sample(
        {
            "full": {
                "orders": TableState(
                    MS,
                    {TP: 5},
                    {TP: MS},
                    (Published(MS, 1, 2, 3, 4, 5, 6),),
                    MS,
                    ("check",),
                    "plan",
                    "alert",
                    MS,
                    ("5 lost",),
                    {"main": 5},
                    {"log": 5},
                )
            },
            "few": {"orders": TableState(MS, {}, {})},
        },
        states_content,
        parse_states,
        _gzip,
        gzip.decompress,
    ),
    "action_record": Sample(
        {
            "full": ActionRecord(
                "0" * 32, MS, MS + 1, "ada", "pause", "orders", "ü", "waybill pause", {"stream": "orders"}
            )
        },
        _stored(action_log.record_action),
        lambda d: action_log._record(KEY, d),
        unpack=_without_token,
    ),
}
"""By the name of the file with the golden bytes."""
