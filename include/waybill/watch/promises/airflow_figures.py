"""Figures of Airflow: whether its components work, failed runs, and tasks that make no progress."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import quote

from waybill.archive.ingest.services import FindConnection
from waybill.config.models import Config
from waybill.config.models.groups import group_dag_id
from waybill.config.models.promises import PromiseName, PromiseSeverity
from waybill.config.models.quantities import counted, rough_duration
from waybill.config.names import Stage
from waybill.watch.incidents.failures import Failures
from waybill.watch.incidents.finding import REACHABLE, TASKS, Finding, Verdict
from waybill.watch.promises.airflow_api import AirflowApi, AirflowState, LastRun, WaitingTask

AIRFLOW = "Airflow"
"""The subject of findings about Airflow itself."""

_OTHER_DAGS = ("backfill", "backfill_undo", "restore", "rehearse", "ledger", "watch", "airflow_cleanup")
_DEFAULT_POOL = "default_pool"
_NAMED_POOLS = 10
_RECENT_MS = 48 * 3_600_000
"""Older failed runs are ignored: the DAG is run by hand, or has not run since then for another reason."""

_REPORTING_TASKS = frozenset({"report", "stream", "check_alerts"})
"""Tasks that fail in order to report a fault, which the promises of a stream report too."""

_EFFECTS = frozenset(
    {PromiseName.ARCHIVE_LAG, PromiseName.TABLE_LAG, PromiseName.COMPLETE_BY, PromiseName.RUN_DURATION}
)
"""Promises that are broken for all streams while Airflow starts no tasks."""


def ask_airflow(config: Config, find: FindConnection, now_ms: int, failures: Failures) -> AirflowState | None:
    """Return the state of Airflow; None if the config names no connection to it.

    `failures`: collects requests that the user is not allowed to make, and unexpected exceptions.

    Raises `ConfigError` for a connection that is missing or cannot be used, and `AirflowUnavailable`.
    """
    api = AirflowApi.of(config, find)
    if api is None:
        return None
    with api:
        return api.state(_dags(config), now_ms, now_ms - _RECENT_MS, config.airflow.tasks.limit, failures)


def airflow_finding(state: AirflowState) -> Finding:
    """Return whether the components of Airflow work."""
    return Finding(
        stream="",
        promise=REACHABLE,
        subject=AIRFLOW,
        verdict=Verdict.BROKEN if state.unhealthy else Verdict.KEPT,
        severity=PromiseSeverity.CRITICAL,
        figure=f"no heartbeat of its {' and '.join(state.unhealthy)}" if state.unhealthy else "it answers",
        limit="it answers",
        detail="Airflow starts no tasks without its scheduler" if "scheduler" in state.unhealthy else "",
        command="waybill watch --dry-run",
    )


def task_findings(config: Config, state: AirflowState, others: Iterable[Finding], now_ms: int) -> list[Finding]:
    """Return a finding for each DAG: whether Airflow can run it, its last run succeeded, and each task makes progress.

    `others`: all other findings. A failed task that reports the same fault as one of them is not reported again.
    """
    broken = {each.stream for each in others if each.stream and each.verdict is Verdict.BROKEN}
    runs = {run.dag: run for run in state.runs}
    slow: dict[str, list[WaitingTask]] = {}
    for task in state.tasks:
        if _is_slow(config, task, now_ms):
            slow.setdefault(task.dag, []).append(task)
    found, pools = [], pools_of(config)
    for dag, stream in _dags(config).items():
        run = runs.get(dag)
        if (why := _absence(config, state, dag, pools.get(dag, _DEFAULT_POOL))) is not None:
            figure, detail = why
            found.append(replace(_finding(config, dag, stream, Verdict.BROKEN), figure=figure, detail=detail, value=1))
        elif run is not None and run.has_failed and not _is_explained(config, dag, stream, run, broken):
            found.append(_failed_finding(config, dag, stream, run))
        elif dag in slow:
            found.append(_slow_finding(config, dag, stream, slow[dag], now_ms))
        else:
            verdict = Verdict.UNKNOWN if dag in state.unknown else Verdict.KEPT
            found.append(_finding(config, dag, stream, verdict))
    return found


def unknown_task_findings(config: Config) -> list[Finding]:
    """Return the findings about tasks while Airflow does not answer."""
    return [_finding(config, dag, stream, Verdict.UNKNOWN) for dag, stream in _dags(config).items()]


def without_effects(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of a watch during which Airflow starts no tasks.

    Then messages of all streams are archived and published late. One incident reports the cause: the promises that are
    broken for this reason count as not measured. The retention runway is still reported.
    """
    return [
        replace(each, verdict=Verdict.UNKNOWN) if each.promise in _EFFECTS and each.verdict is Verdict.BROKEN else each
        for each in findings
    ]


def _dags(config: Config) -> dict[str, str]:
    """Return the ids of the watched DAGs, each with its stream or ''."""
    return {**config.dag_ids(), **dict.fromkeys(_OTHER_DAGS, "")}


def _absence(config: Config, state: AirflowState, dag: str, pool: str) -> tuple[str, str] | None:
    """Return why no task of a DAG can run, as figure and detail; None if tasks can run."""
    if dag in state.absent:
        return f"DAG {dag} is not in Airflow", state.absent[dag]
    if dag in state.paused and (dag in config.dag_ids() or dag in state.queued_and_paused):
        return f"DAG {dag} is paused in Airflow", (
            "its runs stay queued, and none begins: resume it with its switch in Airflow's UI. To pause a stream, use "
            "`waybill pause`, which is recorded with its reason"
        )
    if state.pools is not None and pool not in state.pools:
        known = ", ".join(sorted(state.pools)[:_NAMED_POOLS])
        return f"pool {pool} does not exist", (
            f"tasks of DAG {dag} stay scheduled, and none begins: create the pool in Airflow, or name another in the "
            f"config. Airflow has: {known}"
        )
    return None


def pools_of(config: Config) -> dict[str, str]:
    """Return the Airflow pool of the tasks of each DAG that does scheduled work."""
    found = {}
    for name in config.ingest_groups():
        found[group_dag_id(Stage.INGEST, name)] = config.group(name).ingest.pool
    for stage in Stage:
        for group in config.streams_by_group(stage):
            settings = config.group(group)
            job = settings.ingest if stage is Stage.INGEST else settings.spark_job(stage)
            found[group_dag_id(stage, group)] = job.pool
        for name, stream in config.streams.items():
            section = stream.section(stage)
            if section is not None and section.has_own_dag:
                found[section.dag_id(stage, name)] = section.pool or _DEFAULT_POOL
    return found


def _is_explained(config: Config, dag: str, stream: str, run: LastRun, broken: set[str]) -> bool:
    """Return whether another broken promise of the same streams reports the same fault."""
    if not run.failed or any(task.task not in _REPORTING_TASKS for task in run.failed):
        return False
    labels = {task.label for task in run.failed if task.task == "stream"}
    if labels:
        return labels <= broken
    return stream in broken if stream else any(name in broken for name in _streams_of(config, dag))


def _streams_of(config: Config, dag: str) -> list[str]:
    """Return the streams of a group's ingest DAG, since its report names no stream."""
    groups = config.ingest_groups()
    return next((names for group, names in groups.items() if group_dag_id(Stage.INGEST, group) == dag), [])


def _is_slow(config: Config, task: WaitingTask, now_ms: int) -> bool:
    promise = config.airflow.tasks
    limit = promise.running_limit if task.is_running else promise.limit
    return now_ms - task.since_ms > limit.total_seconds() * 1000


def _failed_finding(config: Config, dag: str, stream: str, run: LastRun) -> Finding:
    tasks = [f"{each.task}{f' ({each.label})' if each.label else ''}" for each in run.failed]
    shown = ", ".join(tasks[:5]) + (", …" if len(tasks) > 5 else "")
    tries = max((each.tries for each in run.failed), default=0)
    detail = f"after {counted(tries, 'attempt')}: {shown}" if tasks else "the run ran into its timeout"
    ended = datetime.fromtimestamp(run.ended_ms / 1000, UTC)
    return replace(
        _finding(config, dag, stream, Verdict.BROKEN),
        figure=f"{counted(len(tasks), 'task')} failed" if tasks else "the run failed",
        detail=f"DAG {dag}, run {run.run}, which ended at {ended:%Y-%m-%d %H:%M:%S} UTC; {detail}",
        since_ms=run.ended_ms,
        value=max(1, len(tasks)),
        link=_link(config, dag, run.run),
    )


def _slow_finding(config: Config, dag: str, stream: str, tasks: Sequence[WaitingTask], now_ms: int) -> Finding:
    oldest = min(tasks, key=lambda task: task.since_ms)
    does = "runs" if oldest.is_running else "waits"
    limit = config.airflow.tasks.running_limit if oldest.is_running else config.airflow.tasks.limit
    return replace(
        _finding(config, dag, stream, Verdict.BROKEN),
        figure=f"one {does} for {rough_duration((now_ms - oldest.since_ms) / 1000)}",
        detail=f"DAG {dag}, run {oldest.run}: {oldest.task}; {counted(len(tasks), 'task')} over the limit",
        since_ms=oldest.since_ms + int(limit.total_seconds() * 1000),
        value=len(tasks),
        link=_link(config, dag, oldest.run),
    )


def _finding(config: Config, dag: str, stream: str, verdict: Verdict) -> Finding:
    promise = config.airflow.tasks
    waits, runs = (rough_duration(each.total_seconds()) for each in (promise.limit, promise.running_limit))
    return Finding(
        stream=stream,
        promise=TASKS,
        subject=dag,
        verdict=verdict,
        severity=promise.severity,
        figure="none failed",
        limit="" if verdict is Verdict.UNKNOWN else f"none fails, waits over {waits} or runs over {runs}",
        command="waybill watch --dry-run",
        value=None if verdict is Verdict.UNKNOWN else 0,
    )


def _link(config: Config, dag: str, run: str) -> str:
    """Return the address of a run in Airflow's UI; '' without `alerts.airflow_url`."""
    base = config.alerts.airflow_url
    return f"{base}/dags/{quote(dag, safe='')}/runs/{quote(run, safe='')}" if base else ""
