"""The metrics that follow from a measurement, as Prometheus's own client reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from waybill.base.metering import Tally
from waybill.config.models.promises import PromiseName, PromiseSeverity
from waybill.config.names import TopicPartition
from waybill.services.coordination import DailyUsage
from waybill.watch.incidents.finding import REACHABLE, Finding, Verdict
from waybill.watch.metrics.families import metric_families
from waybill.watch.promises.log_figures import Logs
from waybill.watch.promises.measure import Measured
from waybill.watch.promises.samples import OffsetSample
from waybill.watch.promises.table_figures import TableState

MONITORING = Path(__file__).parents[4] / "docs" / "monitoring"
TP0, TP1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOW_MS = 1_800_000_000_000


def finding(promise: str, value: float | None, verdict: Verdict = Verdict.KEPT, **fields: Any) -> Finding:
    return Finding(
        **{"stream": "orders", **fields},
        promise=promise,
        verdict=verdict,
        severity=PromiseSeverity.WARNING,
        value=value,
    )


def samples(measured: Measured, usage: Sequence[DailyUsage] | None = None) -> dict[str, float]:
    """Return the samples by name and labels, through the text format."""

    class Once(Collector):
        def collect(self) -> Any:
            return metric_families(measured, [], 0.5, NOW_MS, usage)

    registry = CollectorRegistry()
    registry.register(Once())
    text = generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    return {
        f"{sample.name}{json.dumps(sample.labels)}": sample.value
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        for sample in family.samples
    }


def test_lags_and_counters_are_sums_over_the_topic_partitions_of_a_stream() -> None:
    logs = Logs(
        offsets={("orders", TP0): OffsetSample(10, 100, 60), ("orders", TP1): OffsetSample(50, 80, 20)},
        stops={},
        pauses={},
        archived_messages={("orders", TP0): 55, ("orders", TP1): 7},
    )
    states = {"orders": TableState(NOW_MS, {TP0: 58, TP1: 20}, {}, rows={"main": 61, "quarantine": 1})}
    found = samples(Measured([], logs, states))
    stream = '{"stream": "orders"}'
    assert found[f"waybill_archive_lag_messages{stream}"] == 40 + 30
    assert found[f"waybill_archived_messages_total{stream}"] == 62
    assert found[f"waybill_table_lag_messages{stream}"] == 2
    assert found['waybill_rows{"stream": "orders", "table": "main"}'] == 61
    assert found["waybill_measurement_timestamp_seconds{}"] == NOW_MS / 1000


def test_a_promise_that_could_not_be_measured_has_no_value() -> None:
    found = samples(
        Measured(
            [
                finding(PromiseName.ARCHIVE_LAG, 90.0, Verdict.BROKEN),
                finding(PromiseName.TABLE_LAG, None, Verdict.UNKNOWN),
                finding(PromiseName.RETENTION_RUNWAY, None),
                finding(PromiseName.COMPLETE_BY, 3.0, Verdict.BROKEN, subject="1h + 90m"),
                finding(REACHABLE, None, Verdict.BROKEN, stream="", subject="S3"),
                finding(REACHABLE, None, Verdict.UNKNOWN, stream="", subject="Kafka"),
            ],
            None,
            {},
        )
    )
    assert found['waybill_archive_lag_seconds{"stream": "orders"}'] == 90.0
    kept = {name: value for name, value in found.items() if name.startswith("waybill_promise_kept")}
    assert kept == {
        'waybill_promise_kept{"promise": "archive_lag", "stream": "orders", "subject": ""}': 0.0,
        'waybill_promise_kept{"promise": "retention_runway", "stream": "orders", "subject": ""}': 1.0,
        'waybill_promise_kept{"promise": "complete_by", "stream": "orders", "subject": "1h + 90m"}': 0.0,
    }
    assert [name for name in found if "runway_seconds" in name or "table_lag" in name] == []
    assert {name: value for name, value in found.items() if "service_up" in name} == {
        'waybill_service_up{"service": "S3"}': 0.0
    }


def test_usage_is_counted_by_operation_and_step_since_midnight() -> None:
    day = date(2027, 1, 15)  # that of NOW_MS
    lane = Tally.from_fields({"requests": {"PutObject": 3}, "sent": 700, "cpu": {"ingest_lane": 1.5}})
    job = Tally.from_fields({"requests": {"PutObject": 4}, "received": 50, "cpu": {"partition_jvm": 8.0}})
    usage = [DailyUsage(day, "ingest", "orders", lane), DailyUsage(day, "partition", "orders", job)]
    found = samples(Measured([], None, {}), usage)
    assert found['waybill_s3_requests_total{"operation": "PutObject", "stream": "orders"}'] == 7
    assert found['waybill_s3_sent_bytes_total{"stream": "orders"}'] == 700
    assert found['waybill_s3_received_bytes_total{"stream": "orders"}'] == 50
    assert found['waybill_cpu_seconds_total{"step": "ingest_lane", "stream": "orders"}'] == 1.5
    created = found['waybill_cpu_seconds_created{"step": "ingest_lane", "stream": "orders"}']
    assert created == NOW_MS // 86_400_000 * 86_400
    assert not any("cpu_seconds" in name for name in samples(Measured([], None, {})))


def known_metrics() -> set[str]:
    names = set()
    for family in metric_families(Measured([], Logs({}, {}, {}), {}), [], 0.5, NOW_MS, []):
        names.add(f"{family.name}_total" if family.type == "counter" else family.name)
    return {*names, "waybill_up"}


@pytest.mark.parametrize("file", ["waybill-rules.yaml", "waybill-rules-test.yaml", "dashboard.json"])
def test_rules_and_dashboard_name_only_metrics_that_exist(file: str) -> None:
    text = (MONITORING / file).read_text().replace("waybill-rules.yaml", "")
    used = set(re.findall(r"(?<![:\w/])waybill_\w+", text))
    assert used
    assert used - known_metrics() == set()


def test_every_metric_is_on_the_dashboard_or_in_a_rule() -> None:
    text = (MONITORING / "dashboard.json").read_text() + (MONITORING / "waybill-rules.yaml").read_text()
    assert {name for name in known_metrics() if name not in text} == {"waybill_measurement_timestamp_seconds"}


def test_the_dashboard_is_what_its_script_writes() -> None:
    """Update it with: python docs/monitoring/dashboard.py > docs/monitoring/dashboard.json"""
    namespace: dict[str, Any] = {"__name__": "dashboard"}
    exec(compile((MONITORING / "dashboard.py").read_text(), "dashboard.py", "exec"), namespace)
    assert namespace["dashboard_json"]() == (MONITORING / "dashboard.json").read_text()


def test_runbooks_that_rules_name_exist() -> None:
    rules = yaml.safe_load((MONITORING / "waybill-rules.yaml").read_text())
    pages = [
        rule["annotations"]["runbook"]
        for group in rules["groups"]
        for rule in group["rules"]
        if "runbook" in rule.get("annotations", {})
    ]
    assert len(pages) >= 4
    assert [page for page in pages if not (MONITORING.parents[1] / page).is_file()] == []


def test_the_documentation_lists_the_metrics() -> None:
    listed = re.findall(r"^\| `(waybill_\w+)` \|", (MONITORING / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(known_metrics())
