"""A status document with something in every part, for tests and for looking at the pages."""

from __future__ import annotations

from waybill.config.models.promises import PromiseSeverity
from waybill.watch.incidents.finding import Verdict
from waybill.watch.promises.status import (
    AuditStatus,
    BackfillStatus,
    BrokerStatus,
    ChainRange,
    CheckStatus,
    DecisionStatus,
    ExampleStatus,
    HoldStatus,
    IncidentStatus,
    LedgerStatus,
    PauseStatus,
    PromiseStatus,
    QuarantineStatus,
    ReplayStatus,
    RunStatus,
    ServiceStatus,
    StopStatus,
    StreamDetails,
    StreamStatus,
    TopicPartitionStatus,
    TrendPoint,
    UsageStatus,
    WatchStatus,
    WindowStatus,
)

NOW_MS = 1_790_000_000_000
MINUTE_MS = 60_000

_PROMISES = (
    ("archive_lag", "4 min", "at most 15 min", 240.0),
    ("retention_runway", "6 d 2 h", "at least 1 d", 525_600.0),
    ("named_stop", "0 stopped topic-partitions", "none", 0.0),
    ("paused", "0 s", "at most 1 d", 0.0),
    ("volume", "too little to compare", "50% to 200% of usual", None),
    ("table_lag", "22 min", "at most 2 h", 1320.0),
    ("run_duration", "0 s", "at most 1 h", 0.0),
    ("quarantine_share", "0.1%", "at most 1.0%", 0.001),
    ("duplicate_share", "0.4%", "at most 5.0%", 0.004),
    ("late_share", "0.0%", "at most 10.0%", 0.0),
    ("dedup_window", "whole", "the whole window", 0.0),
    ("held_publication", "none", "none", 0.0),
    ("ledger_balance", "0 imbalances", "none", 0.0),
)


_BROKEN = {
    "named_stop": ("1 stopped topic-partition", "flights/1: RetentionGap: Kafka deleted 300 offsets", 1.0),
    "held_publication": (
        "a run is held",
        "expect_column_values_to_not_be_null(column=carrier): 3% (31 unexpected)",
        1.0,
    ),
    "archive_lag": ("20 min", "2 topic-partitions; the oldest message is in weather/0", 1200.0),
}
_COMMANDS = {
    "named_stop": "waybill gaps ls --stream {}",
    "held_publication": "waybill quality show {}",
    "archive_lag": "waybill offsets ls --stream {}",
    "retention_runway": "waybill offsets ls --stream {}",
    "quarantine_share": "waybill quarantine ls {}",
    "duplicate_share": "waybill dedup status {}",
    "dedup_window": "waybill dedup status {}",
    "late_share": "waybill lateness {}",
}


def promise(stream: str, name: str, *, broken: bool = False) -> PromiseStatus:
    """Return a promise of a stream, kept or broken."""
    figure, limit, value = next(each[1:] for each in _PROMISES if each[0] == name)
    detail = ""
    if broken:
        figure, detail, value = _BROKEN[name]
    return PromiseStatus(
        stream,
        name,
        "",
        Verdict.BROKEN if broken else Verdict.KEPT,
        PromiseSeverity.CRITICAL if name in ("named_stop", "held_publication") else PromiseSeverity.WARNING,
        figure,
        limit,
        detail,
        _COMMANDS.get(name, "waybill verify {}").format(stream),
        NOW_MS - 23 * MINUTE_MS if broken else None,
        value,
    )


def topic_partitions(topic: str, count: int, *, stopped: int | None = None) -> tuple[TopicPartitionStatus, ...]:
    """Return topic-partitions of one topic, each a little farther behind than the one before.

    Of the stopped one, Kafka has deleted 300 offsets that were not archived. Number 1 has an old accepted gap, too.
    """
    found = []
    for number in range(count):
        committed = 11_900 - 40 * number
        gap = 300 if number == 1 else 0
        found.append(
            TopicPartitionStatus(
                topic,
                number,
                earliest=committed + 300 if number == stopped else 4_000,
                end=12_400 if number == stopped else 12_000,
                committed=committed,
                archived_from=1_000,
                published=11_000 - 40 * number,
                swept=10_500 - 40 * number,
                archived_messages=committed - 1_000 - gap,
                lag_seconds=240.0,
                gaps=(ChainRange(2_000, 2_300, "RetentionGap", "ada", "a broker was down"),) if gap else (),
                stop="RetentionGap" if number == stopped else "",
            )
        )
    return tuple(found)


def ledger_counts(tps: tuple[TopicPartitionStatus, ...]) -> dict[str, int]:
    """Return counts that balance: 12 messages are in quarantine, and 40 rows are duplicates."""
    archived = sum(tp.archived_messages or 0 for tp in tps)
    waiting = sum(tp.table_lag or 0 for tp in tps)
    unswept = 500 * len(tps)
    rows = archived - waiting - 12
    return {
        "not_archived": sum(tp.lag for tp in tps),
        "archived_offsets": sum(tp.committed - tp.archived_from for tp in tps),
        "archived_messages": archived,
        "accepted_gaps": 300,
        "rows": rows,
        "quarantine": 12,
        "held": 0,
        "waiting": waiting,
        "unique": rows - unswept - 40,
        "duplicates": 40,
        "unswept": unswept,
    }


def flights() -> StreamStatus:
    """Return a stream with something in every part."""
    name = "flights"
    tps = topic_partitions(name, 3, stopped=1)
    counts = ledger_counts(tps)
    broken = {"named_stop", "held_publication"}
    return StreamStatus(
        name=name,
        table="analytics.flights",
        generation=1,
        source="kafka",
        dags={"ingest": "ingest_group__default", "partition": "partition_group__default", "dedup": "dedup__flights"},
        promises=tuple(promise(name, each[0], broken=each[0] in broken) for each in _PROMISES),
        topic_partitions=tps,
        logs_ms=NOW_MS - 30_000,
        tables_ms=NOW_MS - 3 * MINUTE_MS,
        trend=tuple(TrendPoint(NOW_MS - (60 - n) * MINUTE_MS, float(n * 4), 1000.0, n * 5) for n in range(60)),
        produced_per_second=120.5,
        archived_per_second=180.0,
        stops=(StopStatus(name, 1, "RetentionGap", "Kafka deleted 300 offsets", NOW_MS - 23 * MINUTE_MS, 300),),
        rows={"main": counts["rows"], "quarantine": 12, "unique": counts["unique"], "duplicates": 40},
        runs=(
            RunStatus("dedup", NOW_MS - 18 * MINUTE_MS, 1_190, 0, 10, run="asset_triggered__2026-09-21T13:55:30+00:00"),
            RunStatus("partition", NOW_MS - 20 * MINUTE_MS, 1_200, 3, 0, 1, run="scheduled__2026-09-21T13:53:00+00:00"),
            RunStatus("partition", NOW_MS - 80 * MINUTE_MS, 1_180, 0, 0, 0),
        ),
        planned_ms=NOW_MS - 2 * MINUTE_MS,
        planned_run="scheduled__2026-09-21T14:11:00+00:00",
        hold=HoldStatus(
            NOW_MS - 2 * MINUTE_MS,
            ("expect_column_values_to_not_be_null(column=carrier): 3% (31 unexpected)",),
            "20260921T101500Z_ab12",
        ),
        ledger=LedgerStatus(NOW_MS - 3 * 60_000, (), counts),
        details=StreamDetails(
            NOW_MS - 3 * MINUTE_MS,
            swept={f"{name}/{tp.partition}": tp.swept for tp in tps if tp.swept},
            quarantine=(
                QuarantineStatus(
                    "not_json",
                    "json",
                    name,
                    12,
                    2,
                    10_917,
                    NOW_MS - 7_200_000,
                    NOW_MS - 1_200_000,
                    (
                        ExampleStatus(0, 4_400, "not_json: unexpected end of data, at byte 118 of 118"),
                        ExampleStatus(2, 10_917, "not_json: unexpected character '<' at byte 0: <html><body>502 Bad"),
                    ),
                ),
            ),
            audits=(
                AuditStatus(
                    "20260921T101500Z_ab12",
                    NOW_MS - 2 * MINUTE_MS,
                    9,
                    (
                        CheckStatus(
                            "expect_column_values_to_not_be_null(carrier)", "critical", "3%", ("flights/0@11: null",)
                        ),
                    ),
                ),
                AuditStatus("20260921T091500Z_cd34", NOW_MS - 62 * MINUTE_MS, 9),
            ),
            backfills=(
                BackfillStatus(
                    "20260921_7f3a",
                    "built",
                    "range",
                    "8 of 8",
                    4_000,
                    "ada",
                    "the parser was corrected",
                    NOW_MS - 3_600_000,
                    ("carrier: 31 messages change", "  flights/0@11: null -> AA"),
                ),
                BackfillStatus("20260920_0001", "promoted", "range", "2 of 2", 100, "bob", "test", NOW_MS - 86_400_000),
            ),
            window=WindowStatus(7 * 86_400_000, 7 * 86_400_000, 86_400_000, 1_200_000, 48_000_000, 64 << 20),
            gaps={f"{name}/1": (ChainRange(2_000, 2_300, "RetentionGap", "ada", "a broker was down"),)},
            live_generation=1,
        ),
    )


def quiet(name: str, tps: int = 2) -> StreamStatus:
    """Return a stream that keeps all promises."""
    return StreamStatus(
        name=name,
        table=f"analytics.{name}",
        generation=1,
        source="kafka",
        dags={"ingest": "ingest_group__default", "partition": "partition_group__default"},
        promises=tuple(promise(name, each[0]) for each in _PROMISES),
        topic_partitions=topic_partitions(name, tps),
        logs_ms=NOW_MS - 30_000,
        tables_ms=NOW_MS - MINUTE_MS,
        trend=tuple(TrendPoint(NOW_MS - (60 - n) * MINUTE_MS, 30.0, 100.0, 10) for n in range(60)),
        produced_per_second=10.0,
        archived_per_second=10.5,
        rows={"main": 1_000, "quarantine": 0},
        runs=(RunStatus("partition", NOW_MS - 20 * MINUTE_MS, 1_200),),
        pauses=(PauseStatus("ingest", "ada", NOW_MS - 3_600_000, "Kafka is moved"),) if name == "paused" else (),
    )


def sample_status(*others: StreamStatus) -> WatchStatus:
    """Return a status document with something in every part."""
    return WatchStatus(
        at_ms=NOW_MS - 30_000,
        seconds=1.2,
        services=(
            ServiceStatus("Kafka", Verdict.KEPT, "it answers", "", NOW_MS - 30_000),
            ServiceStatus("S3", Verdict.KEPT, "it answers", "", NOW_MS - 30_000),
            ServiceStatus("ZooKeeper", Verdict.KEPT, "it answers", "", NOW_MS - 30_000),
            ServiceStatus("the catalog", Verdict.BROKEN, "no answer", "connection refused", NOW_MS - 9 * MINUTE_MS),
        ),
        streams=(flights(), quiet("weather"), quiet("paused"), *others),
        brokers=(
            BrokerStatus(1, "rack-a", True, 30, 40, 0, 0.41, True),
            BrokerStatus(2, "rack-b", False, 0, 40, 40, None, True),
            BrokerStatus(3, "", True, 30, 40, 0, 0.87, False),
        ),
        shared=(
            PromiseStatus(
                "",
                "tasks",
                "partition_group__default",
                Verdict.BROKEN,
                PromiseSeverity.WARNING,
                "1 task failed",
                "none fails, waits over 15 min or runs over 6 h",
                "DAG partition_group__default, run scheduled__x; after 3 attempts: partition (weather)",
                "waybill watch --dry-run",
                NOW_MS - 600_000,
                1.0,
                "https://airflow.example.net/dags/partition_group__default/runs/x",
            ),
            PromiseStatus(
                "",
                "kafka_under_replicated",
                "",
                Verdict.BROKEN,
                PromiseSeverity.WARNING,
                "40 topic-partitions",
                "none for longer than 10 min",
                "flights/0, flights/1, flights/2 and 37 more wait for broker 2",
                "waybill kafka health",
                NOW_MS - 31 * MINUTE_MS,
                40.0,
            ),
            PromiseStatus(
                "",
                "kafka_disk_used",
                "",
                Verdict.KEPT,
                PromiseSeverity.WARNING,
                "87%",
                "at most 90%",
                command="waybill kafka health",
            ),
        ),
        incidents=(
            IncidentStatus(
                "flights-named_stop-20260921T100000Z",
                "flights",
                "named_stop",
                "",
                PromiseSeverity.CRITICAL,
                NOW_MS - 22 * MINUTE_MS,
                NOW_MS - 23 * MINUTE_MS,
                "1 stopped topic-partition",
                "none",
                "flights/1: RetentionGap",
                "waybill gaps ls --stream flights",
                runbook="https://runbooks.example.net/named-stop.md",
            ),
            IncidentStatus(
                "weather-archive_lag-20260921T080000Z",
                "weather",
                "archive_lag",
                "",
                PromiseSeverity.WARNING,
                NOW_MS - 7_200_000,
                NOW_MS - 7_300_000,
                "20 min",
                "at most 15 min",
                "weather/0",
                "waybill offsets ls",
                resolved_ms=NOW_MS - 3_600_000,
                acknowledged_by="bob",
                acknowledged_ms=NOW_MS - 7_000_000,
                acknowledged_reason="I restart the broker",
            ),
        ),
        replays=(
            ReplayStatus(
                "01J8XSAMPLE0000000000000AA",
                "flights",
                "https://hooks.example.net/flights",
                "ada",
                "ongoing",
                "",
                0.4,
                1_000,
                400,
                2,
                NOW_MS - 600_000,
                None,
            ),
        ),
        replays_ms=NOW_MS - 30_000,
        usage=(
            UsageStatus(
                "2026-09-21",
                "ingest",
                "flights",
                {"PutObject": 120, "GetObject": 30},
                1 << 30,
                1 << 20,
                61.5,
                2_000_000,
            ),
            UsageStatus(
                "2026-09-20",
                "partition",
                "flights",
                {"GetObject": 300, "ListObjectsV2": 12},
                1 << 20,
                1 << 30,
                300.0,
                0,
            ),
            UsageStatus("2026-09-21", "watch", "", {"GetObject": 1_440}, 1 << 20, 1 << 20, 80.0, 0),
        ),
        usage_ms=NOW_MS - 2 * MINUTE_MS,
        actions=(
            DecisionStatus(
                NOW_MS - 900_000,
                "ada",
                "pause",
                "paused",
                {"stream": "paused"},
                "Kafka is moved",
                "paused: ingest paused",
                "waybill pause paused --reason 'Kafka is moved' --by ada",
                "1790000000000-0123456789abcdef01234567",
            ),
            DecisionStatus(
                NOW_MS - 960_000,
                "bob",
                "promote",
                "flights",
                {"stream": "flights", "backfill": "20260921_7f3a"},
                "as agreed",
                "ordered: run r1 of DAG backfill",
                "waybill backfill promote flights 20260921_7f3a --reason 'as agreed' --by bob",
                "1790000000000-0123456789abcdef01234568",
                "backfill",
                "r1",
                "failed",
            ),
        ),
        broken={"typo": "streams.typo.topics: unknown key"},
    )
