"""Shared by the DAGs of groups: their assets, and the tasks that show the result of each stream.

    partition (Spark) → results → stream (one mapped task for each stream with results or an error)

The Spark job writes the results to S3 (`waybill.tables.spark.group_results`). `results` reads them. A task `stream`
fails if its stream failed or has an alert. Each committed table gets its asset event, also if its stream's task fails.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias, task

from waybill.config.models import Config
from waybill.config.models.groups import group_dag_id
from waybill.config.names import Stage
from waybill.interfaces.airflow.counters import count_result
from waybill.interfaces.airflow.spark_submit import SubmitGroup, table_asset

if TYPE_CHECKING:
    from waybill.tables.spark.group_results import GroupResults, StreamResult

logger = logging.getLogger(__name__)

_MOST_STREAM_TASKS = 1000
"""Airflow refuses to map a task more than 1,024 times (`core.max_map_length`)."""
_MOST_NAMES = 20


# --- when DAGs are parsed ---------------------------------------------------------------------------------------------


def group_asset(group: str) -> Asset:
    """Return the asset that stands for the tables of a partition group: one event for each run that commits."""
    return Asset(name=group_dag_id(Stage.PARTITION, group), uri=f"x-waybill://partition/{group}", group="waybill")


def partition_assets(config: Config, streams: Sequence[str]) -> list[Asset]:
    """Return the assets that partition runs of these streams update: of groups, and of tables with a separate DAG.

    Each once, in the order of the streams.
    """
    assets: dict[str, Asset] = {}
    for name in streams:
        stream = config.stream(name)
        partition = stream.partition
        asset = table_asset(config, stream) if partition.has_own_dag else group_asset(partition.group)
        assets.setdefault(asset.name, asset)
    return list(assets.values())


def add_result_tasks(job: Stage, group: str, submit: SubmitGroup) -> None:
    """Add the tasks `results` and `stream` after the task that submits the job."""
    # An asset alias creates events only for the assets that a task names, so a table without a commit gets no event.
    updates = AssetAlias(f"{group_dag_id(job, group)}_updates", group="waybill")
    outlets = [updates] if job is Stage.PARTITION else []

    # Run also after a failed application, which may have processed some streams.
    @task(trigger_rule="all_done", outlets=outlets)
    def results() -> list[dict[str, Any]]:
        from airflow.sdk import get_current_context

        from waybill.interfaces.airflow.tasks import begin_task

        context = get_current_context()
        report = read_group_report(begin_task(), job, group, context["run_id"])
        for asset in report.assets:
            context["outlet_events"][updates].add(asset)
        return report.tasks

    # The task only reports, so a retry would report the same: it has no retries, so that the alert is immediate.
    @task(retries=0, map_index_template="{{ stream_name }}", outlets=outlets)
    def stream(result: dict[str, Any]) -> None:
        from airflow.sdk import get_current_context

        context: Any = get_current_context()
        context["stream_name"] = result["stream"]
        report_stream(job, result)
        if result["asset"] is not None:
            context["outlet_events"][updates].add(Asset(**result["asset"]))

    found = results()
    submit >> found
    stream.expand(result=found)


# --- when tasks run ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupReport:
    """The report about the results of a group's application."""

    tasks: list[dict[str, Any]]
    """The argument of each task `stream`: a result as a JSON object, and the asset that the task updates."""
    assets: list[Asset]
    """Assets that no such task updates."""


def read_group_report(config: Config, job: Stage, group: str, run: str) -> GroupReport:
    """Return the report about the results of a DAG run, and log a summary.

    Raises `AirflowFailException` if the application has written no results, `DocumentDamaged`, or the retriable
    `StoreUnavailable`.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from waybill.services.store import Store
    from waybill.tables.spark.group_results import GroupResults

    with Store.of(config.storage) as store:
        results = GroupResults.load(store, group, str(job), run)
    if results is None:
        raise AirflowFailException(
            f"the Spark application of {group_dag_id(job, group)} has written no results for run {run}: see the log of "
            f"the task before this one. The next run does its work"
        )
    logger.info("%s", _summary(results))
    return _report(config, job, group, results)


def _report(config: Config, job: Stage, group: str, results: GroupResults) -> GroupReport:
    shown = _shown(results)
    assets: dict[str, Asset] = {}
    if job is Stage.PARTITION:
        committed = [each.stream for each in results.streams.values() if each.committed]
        assets = {name: table_asset(config, config.stream(name)) for name in committed if name in config.streams}
    # A failing task updates no asset, so `results` updates it. The other tasks update their own assets: Airflow writes
    # all events of a task in one transaction, and hundreds of events would take longer than a task waits for the
    # answer.
    by_task = {each.stream: assets[each.stream] for each in shown if each.is_sound and each.stream in assets}
    tasks = []
    for each in shown:
        asset = by_task.get(each.stream)
        document = None if asset is None else {"name": asset.name, "uri": asset.uri, "group": asset.group}
        tasks.append({**each.document(), "asset": document})
    of_group = [group_asset(group)] if assets else []
    return GroupReport(tasks, [*of_group, *(asset for name, asset in assets.items() if name not in by_task)])


def _shown(results: GroupResults) -> list[StreamResult]:
    """Return the results that get a task: failed streams first, then streams with new rows."""
    from waybill.tables.spark.group_results import StreamOutcome, StreamResult

    shown = [each for each in results.streams.values() if not each.is_sound]
    shown += [each for each in results.streams.values() if each.is_sound and each.status is StreamOutcome.DONE]
    if not results.ended:
        missing = results.missing
        names = ", ".join(missing[:_MOST_NAMES]) + (", …" if len(missing) > _MOST_NAMES else "")
        message = (
            f"the Spark application ended before {len(missing)} streams had a result: {names}. See the log of the task "
            f"that submits it. The next run does their work"
        )
        ended = StreamResult("(the application)", StreamOutcome.FAILED, error="ApplicationEnded", message=message)
        shown.insert(0, ended)
    return shown[:_MOST_STREAM_TASKS]


def _summary(results: GroupResults) -> str:
    from waybill.tables.spark.group_results import StreamOutcome

    found = results.streams.values()
    counts = {status: sum(each.status is status for each in found) for status in StreamOutcome}
    return (
        f"{len(results.selected)} streams: {counts[StreamOutcome.DONE]} did something, "
        f"{counts[StreamOutcome.NOTHING_NEW]} had nothing new, {counts[StreamOutcome.FAILED]} failed, "
        f"{len(results.missing)} without a result; {sum(bool(each.alerts) for each in found)} with alerts; "
        f"{sum(each.rows for each in found):,} rows"
    )


def report_stream(job: Stage, result: Mapping[str, Any]) -> None:
    """Log the result of a stream, and count it.

    Raises `AirflowFailException` with its error and its alerts, if it has any.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from waybill.tables.spark.group_results import StreamResult

    found = StreamResult.of_document({name: value for name, value in result.items() if name != "asset"})
    for line in found.lines:
        logger.info("%s", line)
    count_result(job, found.stream, found.counts)
    if found.problems:
        raise AirflowFailException("\n".join(found.problems))
