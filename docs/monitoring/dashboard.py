"""Writes the Grafana dashboard of Waybill's metrics, as JSON.

    python docs/monitoring/dashboard.py > docs/monitoring/dashboard.json

Import the JSON file in Grafana. A test compares it with what this script writes, and its queries with the metrics.
"""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.builders.common import VizLegendOptions
from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import DataSourceRef

__all__ = ["dashboard_json"]

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_OF_STREAM = '{stream=~"$stream"}'


def _series(title: str, unit: str, *queries: tuple[str, str], description: str = "") -> TimeSeries:
    """Return a panel over time. `queries`: each with the legend of its lines."""
    panel = (
        TimeSeries()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(_SOURCE)
        .min(0)
        .span(12)
        .height(8)
        .legend(
            VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM).show_legend(True)
        )
    )
    for number, (expression, legend) in enumerate(queries):
        panel = panel.with_target(Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + number)))
    return panel


def _number(title: str, unit: str, expression: str, description: str = "") -> Stat:
    return (
        Stat()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(_SOURCE)
        .span(6)
        .height(4)
        .with_target(Dataquery().expr(expression).instant().ref_id("A"))
    )


def _overview() -> Sequence[Stat]:
    return (
        _number("Open incidents", "short", "sum(waybill_open_incidents) or vector(0)"),
        _number("Broken promises", "short", f"count(waybill_promise_kept{_OF_STREAM} == 0) or vector(0)"),
        _number(
            "Shortest retention runway",
            "s",
            f"min(waybill_retention_runway_seconds{_OF_STREAM})",
            "Empty: no loss in sight.",
        ),
        _number("Services that do not answer", "short", "count(waybill_service_up == 0) or vector(0)"),
    )


def _panels() -> Sequence[TimeSeries]:
    def of(metric: str) -> tuple[str, str]:
        return f"{metric}{_OF_STREAM}", "{{stream}}"

    puts = 'operation=~"PutObject|.*Part|.*MultipartUpload"'
    rate = f"sum by (stream) (rate(waybill_archived_messages_total{_OF_STREAM}[5m]))"
    return (
        _series("Archive lag", "s", of("waybill_archive_lag_seconds")),
        _series("Messages to archive", "short", of("waybill_archive_lag_messages")),
        _series("Archived messages per second", "cps", (rate, "{{stream}}")),
        _series(
            "Retention runway", "s", of("waybill_retention_runway_seconds"), description="No line: no loss in sight."
        ),
        _series("Table lag", "s", of("waybill_table_lag_seconds")),
        _series("Messages to partition", "short", of("waybill_table_lag_messages")),
        _series("Age of the unfinished partition run", "s", of("waybill_run_age_seconds")),
        _series(
            "Runs, topic-partitions and streams that wait for a person",
            "short",
            (f"waybill_held_runs{_OF_STREAM}", "held: {{stream}}"),
            (f"waybill_parser_failed_messages{_OF_STREAM}", "parser failed: {{stream}}"),
            (f"waybill_stopped_topic_partitions{_OF_STREAM}", "stopped: {{stream}}"),
            (f"waybill_paused_seconds{_OF_STREAM} > bool 0", "paused: {{stream}}"),
        ),
        _series("Quarantine share", "percentunit", of("waybill_quarantine_ratio")),
        _series("Duplicate share", "percentunit", of("waybill_duplicate_ratio")),
        _series("Rows", "short", (f"waybill_rows{_OF_STREAM}", "{{stream}} {{table}}")),
        _series(
            "Incomplete topic-partitions at a deadline",
            "short",
            (f"waybill_incomplete_topic_partitions{_OF_STREAM}", "{{stream}}: {{deadline}}"),
        ),
        _series("Streams with a shortened dedup window", "short", of("waybill_dedup_window_shortened")),
        _series(
            "S3 requests per second, by operation",
            "reqps",
            (f"sum by (operation) (rate(waybill_s3_requests_total{_OF_STREAM}[10m]))", "{{operation}}"),
        ),
        _series(
            "Requests per hour that create objects, by stream",
            "short",
            (
                'sum by (stream) (increase(waybill_s3_requests_total{stream=~"$stream",' + puts + "}[1h]))",
                "{{stream}}",
            ),
        ),
        _series(
            "Bytes per second to and from S3",
            "Bps",
            (f"sum by (stream) (rate(waybill_s3_sent_bytes_total{_OF_STREAM}[10m]))", "sent: {{stream}}"),
            (f"sum by (stream) (rate(waybill_s3_received_bytes_total{_OF_STREAM}[10m]))", "received: {{stream}}"),
        ),
        _series(
            "CPUs in use, by step",
            "short",
            (f"sum by (step) (rate(waybill_cpu_seconds_total{_OF_STREAM}[1h]))", "{{step}}"),
            description="Each process is counted when it ends.",
        ),
        _series("Duration of a measurement", "s", ("waybill_measurement_duration_seconds", "all streams")),
    )


def dashboard_json() -> str:
    """Return the dashboard as JSON."""
    dashboard = (
        Dashboard("Waybill")
        .uid("waybill")
        .tags(["waybill"])
        .refresh("1m")
        .time("now-24h", "now")
        .timezone("utc")
        .with_variable(DatasourceVariable("datasource").type("prometheus"))
        .with_variable(
            QueryVariable("stream")
            .label("Stream")
            .query("label_values(waybill_promise_kept, stream)")
            .datasource(_SOURCE)
            .multi(True)
            .include_all(True)
        )
        .with_row(Row("Now"))
    )
    for number in _overview():
        dashboard = dashboard.with_panel(number)
    dashboard = dashboard.with_row(Row("Over time"))
    for panel in _panels():
        dashboard = dashboard.with_panel(panel)
    return JSONEncoder(sort_keys=True, indent=2).encode(dashboard.build()) + "\n"


if __name__ == "__main__":
    print(dashboard_json(), end="")
