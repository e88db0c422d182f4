"""The code of the DAGs `backfill` and `backfill_undo`: forms, Python tasks, and the operator that builds on Spark.

Undoing is a DAG of its own, since Airflow grants rights by DAG: who may trigger `backfill` need not be one who may
take published rows back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from waybill.config.models import Config
from waybill.interfaces.airflow.spark_submit import WaybillSparkSubmit
from waybill.tables.spark.job import local_slots

logger = logging.getLogger(__name__)

_ACTIONS = ("plan", "run", "promote", "cancel")
_ID = "^[0-9]{8}_[0-9a-f]{4}$"
_SLOTS_OF_A_CLUSTER = 4
"""Only the Spark job knows how many tasks a cluster runs side by side. Little input is cut into so many, of at least
32 MiB."""
_INSTANT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:\d{2})$"


def backfill_params(config: Config) -> dict[str, Param]:
    """Return the fields of the form. Airflow refuses other values when a run is triggered."""
    return {
        "action": Param(
            "plan",
            type="string",
            enum=list(_ACTIONS),
            title="BackfillAction",
            description="plan: a dry run. run: build a range on a branch, audit and compare it. promote: replace the "
            "table's rows by it. cancel: give it up. The DAG backfill_undo restores the rows from before.",
        ),
        "stream": Param(type="string", enum=sorted(config.streams), title="Stream"),
        "backfill": Param(
            None,
            type=["null", "string"],
            pattern=_ID,
            title="Backfill",
            description="To promote or cancel, and to continue a run: the id, such as 20261122_7f3a.",
        ),
        "generation": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            title="Generation",
            description="Empty: that of the stream. One that is not live is built on its branch, up to the end of the "
            "range; a promotion then shows it instead of the live one.",
        ),
        "source": Param(
            "archive",
            type="string",
            enum=["archive", "kafka"],
            title="Source",
            description="kafka: archive the messages again, into a generation that is not live.",
        ),
        "offsets": _list(
            "Offsets", "TOPIC/PARTITION@FIRST-LAST, such as flights/0@100-199; one per line. Not with the fields below."
        ),
        "topic_partitions": _list("Topic-partitions", "Such as flights/0; one per line. Empty: all of the stream."),
        "since": _instant("Since", "Messages with a Kafka timestamp from this time on."),
        "until": _instant("Until", "Messages with a Kafka timestamp before this time."),
        "everything": Param(False, type="boolean", title="Everything", description="The whole table is built again."),
        "parallel": Param(
            None, type=["null", "integer"], minimum=1, title="Parallel tasks", description="Empty: all slots of Spark."
        ),
        "rate": Param(
            None,
            type=["null", "string"],
            title="Rate limit",
            description="At most so much of the archive a second, such as 10MiB. Empty: no limit.",
        ),
        "accept_failed_checks": Param(
            False,
            type="boolean",
            title="Accept failed checks",
            description="Promote even though a critical check has failed. The reason is stored with your name.",
        ),
        "reason": Param(
            None, type=["null", "string"], title="Reason", description="Why; needed for all but plan, and stored."
        ),
    }


def undo_params(config: Config) -> dict[str, Param]:
    """Return the fields of the form of `backfill_undo`."""
    return {
        "stream": Param(type="string", enum=sorted(config.streams), title="Stream"),
        "backfill": Param(type="string", pattern=_ID, title="Backfill", description="Its id, such as 20261122_7f3a."),
        "reason": Param(type="string", minLength=1, title="Reason", description="Why; it is stored with your name."),
    }


def _list(title: str, description: str) -> Param:
    return Param([], type="array", items={"type": "string"}, title=title, description=description)


def _instant(title: str, description: str) -> Param:
    # JSON Schema's `format` only chooses the form's field: without an optional library it checks nothing.
    return Param(
        None, type=["null", "string"], format="date-time", pattern=_INSTANT, title=title, description=description
    )


def act_from_form(config: Config, form: Mapping[str, Any], by: str | None, run_id: str) -> str | None:
    """Do what the form asks for, or request what it asks to build; return the backfill's id, None for a dry run.

    A retry of the task finds what its first try did. Raises `AirflowFailException` for what cannot be granted.
    """
    from waybill.base.errors import BackfillRefused, ConfigError

    try:
        return _act(config, form, by or "airflow", run_id)
    except (BackfillRefused, ConfigError) as error:
        raise AirflowFailException(str(error)) from error


def undo_from_form(config: Config, form: Mapping[str, Any], by: str | None) -> str:
    """Restore the rows that a promotion replaced; return the backfill's id.

    A retry of the task finds what its first try did. Raises `AirflowFailException` for what cannot be granted.
    """
    from waybill.base.errors import BackfillRefused, ConfigError
    from waybill.tables.backfill import BackfillAction, change_backfill

    stream, backfill, reason = form["stream"], str(form["backfill"]), form["reason"].strip()
    try:
        if not reason:
            raise BackfillRefused("give the reason: it is stored")
        changed = change_backfill(config, stream, backfill, BackfillAction.UNDO, by=by or "airflow", reason=reason)
    except (BackfillRefused, ConfigError) as error:
        raise AirflowFailException(str(error)) from error
    logger.info("%s", changed.event)
    return backfill


def _act(config: Config, form: Mapping[str, Any], by: str, run_id: str) -> str | None:
    from waybill.base.errors import BackfillRefused
    from waybill.tables.backfill import (
        BackfillAction,
        RangeChoice,
        Trigger,
        change_backfill,
        plan_backfill,
        request_backfill,
    )

    stream, backfill, action, reason = form["stream"], form["backfill"], form["action"], (form["reason"] or "").strip()
    if action != "plan" and not reason and not (action == "run" and backfill):
        raise BackfillRefused("give the reason: it is stored")
    if action in ("promote", "cancel"):
        if not backfill:
            raise BackfillRefused(f"give the id of the backfill to {action}: `waybill backfill status` lists them")
        changed = change_backfill(
            config,
            stream,
            backfill,
            BackfillAction(action),
            by=by,
            reason=reason,
            accept_failed_checks=form["accept_failed_checks"],
        )
        logger.info("%s", changed.event)
        return str(backfill)
    if action == "run" and backfill:
        return str(backfill)
    choice = RangeChoice.parse(
        offsets=form["offsets"],
        topic_partitions=form["topic_partitions"],
        since=form["since"],
        until=form["until"],
        everything=form["everything"],
    )
    trigger = Trigger(
        stream, choice, by, reason, form["generation"], form["source"], form["parallel"] or _slots(config), token=run_id
    )
    if action == "plan":
        request, figures = plan_backfill(config, trigger)
    else:
        request, figures = request_backfill(config, trigger)
        logger.info("requested backfill %s", request.id)
    for line in figures.lines():
        logger.info("%s", line)
    return None if action == "plan" else request.id


def _slots(config: Config) -> int:
    """Return how many tasks of the job can run side by side, as far as the Spark connection shows it."""
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
    from waybill.tables.backfill import find_backfill, report_backfill

    with Store.of(config.storage) as store:
        report = report_backfill(store, find_backfill(store, config, stream, backfill))
    for line in report.lines():
        logger.info("%s", line)
    return report.document()
