"""The DAG runs to which the pages link: runs that made commits to tables, and runs that people triggered on a page.

A commit has a time, and Airflow shows when its runs were running: the run of the stage's DAG that was running at the
time of the commit made it. A watch sends requests to Airflow only if it has read tables with new commits.

The record of an action names the triggered run, not how it ended. A watch sends requests to Airflow only while a run of
a listed action has not ended; earlier answers are in the previous document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from waybill.archive.ingest.services import FindConnection
from waybill.config.models import Config
from waybill.config.names import Stage
from waybill.watch.promises.airflow_api import AirflowApi, DagRunSpan
from waybill.watch.promises.status import DecisionStatus, RunStatus, StreamStatus

# --- commits ----------------------------------------------------------------------------------------------------------

_RECENT_MS = 70 * 60_000
"""Runs are searched for commits of the last hour. An older commit without a run was not made by Airflow."""
_LONGEST_MS = 6 * 3_600_000
_SLACK_MS = 60_000
"""Tolerance: the time of a sweep is rounded down to minutes, and the clocks of Airflow and the catalog differ a
little."""


def find_dag_runs(
    config: Config, find: FindConnection, streams: Sequence[StreamStatus], now_ms: int
) -> tuple[StreamStatus, ...]:
    """Return the streams with the DAG runs of their new commits, if Airflow knows them.

    Raises `ConfigError` for a connection that cannot be used, and `AirflowUnavailable`.
    """
    dags = {dag for stream in streams for dag in _wanted(stream, now_ms)}
    api = AirflowApi.of(config, find) if dags else None
    if api is None:
        return tuple(streams)
    with api:
        spans = api.runs_since(dags, now_ms - _RECENT_MS - _LONGEST_MS)
    return tuple(with_dag_runs(stream, spans) for stream in streams)


def _wanted(stream: StreamStatus, now_ms: int) -> Iterable[str]:
    """Yield the DAGs whose runs are searched."""
    if stream.tables_ms != now_ms:  # nothing is new
        return
    for run in stream.runs:
        if not run.run and run.at_ms > now_ms - _RECENT_MS and run.stage in stream.dags:
            yield stream.dags[run.stage]
    if stream.planned_ms is not None and not stream.planned_run and Stage.PARTITION in stream.dags:
        yield stream.dags[Stage.PARTITION]


def with_dag_runs(stream: StreamStatus, spans: Iterable[DagRunSpan]) -> StreamStatus:
    """Return the stream with the DAG runs that were running at the times of its commits."""
    by_dag: dict[str, list[DagRunSpan]] = {}
    for span in spans:
        by_dag.setdefault(span.dag, []).append(span)

    def run_at(stage: str, at_ms: int) -> str:
        found = [
            span
            for span in by_dag.get(stream.dags.get(stage, ""), ())
            if span.begun_ms - _SLACK_MS <= at_ms <= (at_ms if span.ended_ms is None else span.ended_ms + _SLACK_MS)
        ]
        return max(found, key=lambda span: span.begun_ms).run if found else ""

    def linked(run: RunStatus) -> RunStatus:
        return run if run.run else replace(run, run=run_at(run.stage, run.at_ms))

    planned = stream.planned_run
    if not planned and stream.planned_ms is not None:
        planned = run_at(Stage.PARTITION, stream.planned_ms)
    return replace(stream, runs=tuple(linked(run) for run in stream.runs), planned_run=planned)


# --- ordered on a page ------------------------------------------------------------------------------------------------


def known_action_runs(
    decisions: Sequence[DecisionStatus], before: Sequence[DecisionStatus]
) -> tuple[DecisionStatus, ...]:
    """Return the decisions with the ends of their DAG runs, as an earlier watch stored them."""
    known = {(each.dag, each.run): each.run_state for each in before}
    return tuple(replace(each, run_state=known.get((each.dag, each.run), "")) for each in decisions)


def find_action_runs(
    config: Config, find: FindConnection, decisions: Sequence[DecisionStatus]
) -> tuple[DecisionStatus, ...]:
    """Return the decisions with the ends of their DAG runs, if Airflow knows them.

    Raises `ConfigError` for a connection that cannot be used, and `AirflowUnavailable`.
    """
    open_runs = [each for each in decisions if each.run and not each.run_state]
    api = AirflowApi.of(config, find) if open_runs else None
    if api is None:
        return tuple(decisions)
    with api:
        ended = api.ended_runs({each.dag for each in open_runs}, min(each.at_ms for each in open_runs))
    return tuple(replace(each, run_state=each.run_state or ended.get((each.dag, each.run), "")) for each in decisions)
