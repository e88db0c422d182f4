"""The section `airflow`: what the watch asks, deadlines, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from waybill.base.errors import ConfigError
from waybill.config.models import Config, load_config
from waybill.config.models.promises import PromiseSeverity

VALID = """\
version: 1
storage: {bucket: archive}
alerts: {channels: {team: {type: email, to: [a@b.c]}, hook: {type: webhook, connection: hook}}, warning: [team]}
airflow: {}
streams:
  flights:
    topics: [flights]
    parser: {name: json, event_time: {field: at, format: epoch_ms}}
    table: analytics.flights
    partition: {group: own}
  fares:
    topics: [fares]
    ingest: {group: large}
    parser: {name: json, event_time: {field: at, format: epoch_ms}}
    table: analytics.fares
"""


def load(tmp_path: Path, airflow: str = "{}", warning: str = "team") -> Config:
    path = tmp_path / "streams.yaml"
    text = VALID.replace("airflow: {}", f"airflow: {airflow}").replace("warning: [team]", f"warning: [{warning}]")
    path.write_text(text)
    return load_config(path)


def test_airflow_is_not_asked_without_a_connection_and_has_no_deadlines(tmp_path: Path) -> None:
    airflow = load(tmp_path).airflow
    assert airflow.connection is None
    assert (airflow.deadlines.partition, airflow.deadlines.backfill) == (None, None)


def test_a_limit_alone_and_a_severity_alone_are_short_forms_of_tasks(tmp_path: Path) -> None:
    tasks = load(tmp_path, "{connection: waybill_airflow, tasks: 10m}").airflow.tasks
    assert (tasks.limit, tasks.severity) == (timedelta(minutes=10), PromiseSeverity.WARNING)
    assert load(tmp_path, "{tasks: critical}").airflow.tasks.severity is PromiseSeverity.CRITICAL


def test_dags_of_groups_and_of_streams_are_known_by_their_ids(tmp_path: Path) -> None:
    assert load(tmp_path).dag_ids() == {
        "ingest": "",
        "ingest_group__large": "",
        "partition": "",
        "partition__flights": "flights",
        **({"maintenance": ""} if load(tmp_path).stream("fares").maintenance else {}),
    }


@pytest.mark.parametrize(
    ("airflow", "reason"),
    [
        ("{tasks: {limit: 30}}", "a whole number and a unit"),
        ("{tasks: {running_limit: 40d}}", "30d"),
        ("{connection: 'not an id'}", "airflow.connection"),
        ("{deadlines: {partition: 1s}}", "5s"),
        ("{deadlines: {dedup: 1h}}", "airflow.deadlines.dedup"),
        ("{url: http://airflow}", "airflow.url"),
    ],
)
def test_wrong_values_are_refused(tmp_path: Path, airflow: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load(tmp_path, airflow)


def test_a_deadline_that_nobody_is_told_of_is_refused(tmp_path: Path) -> None:
    assert load(tmp_path, "{deadlines: {partition: 2h}}").airflow.deadlines.partition == timedelta(hours=2)
    with pytest.raises(ConfigError, match="nobody is told"):
        load(tmp_path, "{deadlines: {partition: 2h}}", warning="hook")
