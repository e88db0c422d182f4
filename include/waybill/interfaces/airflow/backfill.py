"""The code of the DAGs `backfill` and `backfill_undo`: Python tasks, and the operator that builds on Spark.

Undoing is a separate DAG, since Airflow grants rights by DAG: not every person with the right to trigger `backfill`
should be able to remove published rows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from waybill.base.decision import Decision
from waybill.config.models import Config
from waybill.interfaces.airflow.decisions import log_decision
from waybill.interfaces.airflow.spark_submit import WaybillSparkSubmit
from waybill.interfaces.operations.catalogue import BUILD, OPERATIONS, UNDO
from waybill.interfaces.operations.declaration import OperationName
from waybill.tables.spark.job import local_slots

logger = logging.getLogger(__name__)

_SLOTS_OF_A_CLUSTER = 4
"""The assumed number of parallel tasks, since only the Spark job knows it. Small input is cut into this number of
tasks, of at least 32 MiB."""


def act_from_form(config: Config, form: Mapping[str, Any], by: str | None, run_id: str) -> str | None:
    """Execute the action of the form, or store the request for a build. Return the backfill's id; None for a dry run.

    A retry of the task finds the result of its first try. Raises `AirflowFailException` if the action is refused.
    """
    from waybill.base.errors import BackfillRefused, ConfigError

    try:
        return _act(config, form, Decision.of_run(by, form["reason"]), run_id)
    except (BackfillRefused, ConfigError) as error:
        raise AirflowFailException(str(error)) from error


def undo_from_form(config: Config, form: Mapping[str, Any], by: str | None) -> str:
    """Restore the rows that a promotion replaced; return the backfill's id.

    A retry of the task finds the result of its first try. Raises `AirflowFailException` if the action is refused.
    """
    from waybill.base.errors import BackfillRefused, ConfigError
    from waybill.tables.backfill.kinds import change_backfill
    from waybill.tables.backfill.states import BackfillAction

    stream, backfill, decision = form["stream"], str(form["backfill"]), Decision.of_run(by, form["reason"])
    try:
        if not decision.reason:
            raise BackfillRefused("give the reason: it is stored")
        log_decision(config, UNDO, decision, form)
        changed = change_backfill(config, stream, backfill, BackfillAction.UNDO, by=decision.by, reason=decision.reason)
    except (BackfillRefused, ConfigError) as error:
        raise AirflowFailException(str(error)) from error
    logger.info("%s", changed.event)
    return backfill


def _act(config: Config, form: Mapping[str, Any], decision: Decision, run_id: str) -> str | None:
    from waybill.base.errors import BackfillRefused
    from waybill.tables.backfill.choice import RangeChoice
    from waybill.tables.backfill.kinds import change_backfill, plan_backfill, request_backfill
    from waybill.tables.backfill.planning import Trigger
    from waybill.tables.backfill.states import BackfillAction

    stream, backfill, action = form["stream"], form["backfill"], form["action"]
    if action != "plan" and not decision.reason and not (action == "run" and backfill):
        raise BackfillRefused("give the reason: it is stored")
    if action in ("promote", "cancel"):
        if not backfill:
            raise BackfillRefused(f"give the id of the backfill to {action}: `waybill backfill status` lists them")
        log_decision(config, OPERATIONS[OperationName(action)], decision, form)
        changed = change_backfill(
            config,
            stream,
            backfill,
            BackfillAction(action),
            by=decision.by,
            reason=decision.reason,
            accept_failed_checks=form["accept_failed_checks"],
        )
        logger.info("%s", changed.event)
        return str(backfill)
    if action == "run" and backfill:
        return str(backfill)
    choice = RangeChoice.parse(
        offsets=form["offsets"] or (),
        topic_partitions=form["topic_partitions"] or (),
        since=form["since"],
        until=form["until"],
        everything=form["everything"],
    )
    trigger = Trigger(
        stream,
        choice,
        decision.by,
        decision.reason,
        form["generation"],
        form["source"],
        form["parallel"] or _slots(config),
        token=run_id,
    )
    if action == "plan":
        request, figures = plan_backfill(config, trigger)
    else:
        log_decision(config, BUILD, decision, {**form, "backfill": None})
        request, figures = request_backfill(config, trigger)
        logger.info("requested backfill %s", request.id)
    for line in figures.lines():
        logger.info("%s", line)
    return None if action == "plan" else request.id


def _slots(config: Config) -> int:
    """Return how many tasks of the job can run in parallel, if the Spark connection shows it."""
    from airflow.sdk import BaseHook

    master = BaseHook.get_connection(config.spark.connection).host or ""
    return local_slots(master) or _SLOTS_OF_A_CLUSTER


class SubmitBackfill(WaybillSparkSubmit):
    """Submits the job that builds the backfill which the task `act` has requested. Skipped for other actions."""

    def __init__(self, *, config: Config, **kwargs: Any) -> None:
        arguments = [
            "--stream={{ params.stream }}",
            "--backfill={{ ti.xcom_pull(task_ids='act') }}",
            "{{ '--parallel=' ~ params.parallel if params.parallel else '' }}",
            "{{ '--rate=' ~ params.rate if params.rate else '' }}",
        ]
        super().__init__(job="backfill", label="build", config=config, arguments=arguments, **kwargs)

    def execute(self, context: Any) -> None:
        if context["params"]["action"] != "run":
            raise AirflowSkipException(f"{context['params']['action']} builds nothing")
        super().execute(context)


def report_built(config: Config, stream: str, backfill: str) -> dict[str, Any]:
    """Log the audit and the diff of a backfill that was built, and return its report as a JSON object."""
    from waybill.services.store import Store
    from waybill.tables.backfill.kinds import find_backfill
    from waybill.tables.backfill.report import report_backfill

    with Store.of(config.storage) as store:
        report = report_backfill(store, find_backfill(store, config, stream, backfill))
    for line in report.lines():
        logger.info("%s", line)
    return report.document()
