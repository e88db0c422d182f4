"""`waybill streams` shows what the watch found about the DAGs of a stream."""

from __future__ import annotations

from typing import Any

from waybill.config.models.alerts import Alerts
from waybill.config.models.promises import PromiseName, PromiseSeverity
from waybill.interfaces.cli.streams import _incidents
from waybill.watch.incidents.finding import CONFIG, TASKS, Finding, Verdict
from waybill.watch.incidents.incident import IncidentBook
from waybill.watch.incidents.rules import advance


def found(stream: str, promise: str, subject: str, figure: str) -> Finding:
    return Finding(stream, promise, Verdict.BROKEN, PromiseSeverity.WARNING, figure, subject=subject, detail="why")


def test_a_paused_dag_a_missing_pool_and_a_config_that_does_not_load_are_problems_of_a_stream() -> None:
    """N7: `waybill streams` said `ok` while no task of the stream could run."""
    findings = [
        found("", TASKS, "partition", "DAG partition is paused in Airflow"),
        found("", TASKS, "maintenance", "DAG maintenance is not in Airflow"),
        found("flights", TASKS, "dedup__flights", "pool spark does not exist"),
        found("", CONFIG, "", "the config does not load"),
        found("fares", CONFIG, "", "the stream is left out"),
        found("flights", PromiseName.ARCHIVE_LAG, "", "20 min"),
    ]
    book: Any = advance(IncidentBook(), findings, Alerts(), 1_000)
    dags = {"ingest": "ingest", "partition": "partition", "dedup": "dedup__flights"}
    problems = _incidents(book.incidents, "flights", dags)
    assert [each.message for each in problems] == [
        "DAG partition is paused in Airflow: why",
        "pool spark does not exist: why",
        "the config does not load: why",
    ]
    assert {each.error for each in problems} == {"incident: tasks", "incident: config"}
